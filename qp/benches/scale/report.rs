//! Measurements side by side, in interleaved rounds; and how they are shown.

use serde_json::{Value, json};

/// One line of a table.
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// What it is of the first line's.
    pub(crate) ratio: f64,
}

/// One table.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// Measures each of `worlds` once a round, one after the other, so that what else the machine does touches all
/// alike. Gives the medians of the values, and of the ratios to the first world of the same round. The first round
/// warms up.
pub(crate) fn compare<W>(
    rounds: usize,
    worlds: &mut [(String, W)],
    mut measure: impl FnMut(&mut W) -> f64,
) -> Vec<Row> {
    let mut values = vec![Vec::new(); worlds.len()];
    let mut ratios = vec![Vec::new(); worlds.len()];
    for round in 0..=rounds {
        let mut first = None;
        for (i, (_, world)) in worlds.iter_mut().enumerate() {
            let value = measure(world);
            let first = *first.get_or_insert(value);
            if round > 0 {
                values[i].push(value);
                ratios[i].push(value / first);
            }
        }
    }
    let medians = values.into_iter().map(median).zip(ratios.into_iter().map(median));
    let labels = worlds.iter().map(|(label, _)| label.clone());
    labels.zip(medians).map(|(label, (value, ratio))| Row { label, value, ratio }).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Lines of values whose ratios are to the first of them.
pub(crate) fn rows(values: impl IntoIterator<Item = (&'static str, f64)>) -> Vec<Row> {
    let mut first = None;
    let row = |(label, value): (&str, f64)| {
        let first = *first.get_or_insert(value);
        Row { label: label.to_owned(), value, ratio: value / first }
    };
    values.into_iter().map(row).collect()
}

impl Table {
    pub(crate) fn print(&self) {
        println!("\n{:<46} {:>12} {:>8}", self.name, self.unit, "ratio");
        for Row { label, value, ratio } in &self.rows {
            println!("  {label:<44} {value:>12.1} {ratio:>8.2}");
        }
    }

    pub(crate) fn json(&self) -> Value {
        let rows =
            self.rows.iter().map(|row| json!({ "label": row.label, "value": row.value, "ratio": row.ratio }));
        json!({ "name": self.name, "unit": self.unit, "rows": rows.collect::<Vec<_>>() })
    }
}
