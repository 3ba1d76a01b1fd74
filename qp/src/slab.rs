//! A table of objects by number, with free numbers found in constant time.

/// Objects of one kind. The number of one that went is given to the next that comes.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores `value` and gives its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(value);
            return index;
        }
        self.slots.push(Some(value));
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_never_twice_at_once() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_ne!(a, b);
        assert_eq!((slab.remove(a), slab.remove(a), slab.get(a)), (Some("a"), None, None));
        let c = slab.insert("c");
        assert_eq!((c, slab.get(c), slab.get(b)), (a, Some(&"c"), Some(&"b")));
        assert_eq!((slab.remove(99), slab.get_mut(99)), (None, None));
    }
}
