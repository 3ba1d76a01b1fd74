//! The directory of this user's devices, where they find each other and are found: nobody else's business.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sys;

/// The directory, made where there is none: `$XDG_RUNTIME_DIR/ferroce` or one under the directory for temporary files.
pub(crate) fn directory() -> io::Result<PathBuf> {
    let user = sys::effective_user();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let directory = match runtime.filter(|dir| dir.is_absolute() && is_private(dir, user)) {
        Some(dir) => dir.join("ferroce"),
        None => std::env::temp_dir().join(format!("ferroce-{user}")),
    };
    make(&directory, user)?;
    Ok(directory)
}

/// A directory within it, made where there is none.
pub(crate) fn subdirectory(name: &str) -> io::Result<PathBuf> {
    let directory = directory()?.join(name);
    make(&directory, sys::effective_user())?;
    Ok(directory)
}

/// Makes `dir` where it is missing; an error where it is not this user's alone.
fn make(dir: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if is_private(dir, user) {
        return Ok(());
    }
    let what = format!("{} must be a directory that belongs to this user alone (mode 0700)", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

fn is_private(dir: &Path, user: u32) -> bool {
    // Not through a link, which somebody else could have made.
    fs::symlink_metadata(dir).is_ok_and(|is| is.is_dir() && is.uid() == user && is.mode() & 0o077 == 0)
}
