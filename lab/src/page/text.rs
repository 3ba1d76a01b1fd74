//! Words and numbers as the page writes them.

/// Text that HTML and SVG take for nothing else, in elements and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(printable(c)),
        }
    }
    safe
}

/// What no markup may hold, however it is written, is replaced.
fn printable(c: char) -> char {
    if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }
}

/// At most `most` characters of it, for the library to write, which escapes markup itself.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let text = text.chars().map(printable);
    if text.clone().count() <= most {
        return text.collect();
    }
    text.take(most.saturating_sub(1)).chain(['…']).collect()
}

/// A figure to four digits, the thousands apart.
pub(super) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let digits = match value.abs() {
        size if size == 0.0 || size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.1 => 3,
        size if size >= 0.001 => 5,
        _ => return format!("{value:.2e}"),
    };
    let written = trimmed(format!("{value:.digits$}"));
    let (whole, part) = written.split_once('.').map_or((written.as_str(), None), |(w, p)| (w, Some(p)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |rest| ("−", rest));
    let mut grouped = String::from(sign);
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    part.map_or_else(|| grouped.clone(), |part| format!("{grouped}.{part}"))
}

/// A number beside an axis: short, and exact for the round numbers that stand there.
pub(super) fn tick(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.0005 {
        return format!("{value:.0e}");
    }
    let whole = trimmed(format!("{value:.3}"));
    if whole == "-0" { "0".into() } else { figure_grouped(&whole) }
}

/// A number beside an axis of powers of ten; the lines between them have none.
pub(super) fn power_tick(exponent: f64) -> String {
    if (exponent - exponent.round()).abs() > 0.001 {
        return String::new();
    }
    let value = 10_f64.powf(exponent);
    if value < 1.0 { tick(value) } else { figure(value.round()) }
}

fn figure_grouped(written: &str) -> String {
    match written.parse::<f64>() {
        Ok(value) if value.abs() >= 1000.0 => figure(value),
        _ => written.replace('-', "−"),
    }
}

fn trimmed(written: String) -> String {
    if written.contains('.') {
        written.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        written
    }
}

/// A key of a file as words, with its unit as one writes it.
pub(super) fn words(key: &str) -> String {
    const UNITS: [(&str, &str); 10] = [
        ("_gbps", "Gb/s"),
        ("_mbps", "Mb/s"),
        ("_kb", "KB"),
        ("_mb", "MB"),
        ("_kib", "KiB"),
        ("_mib", "MiB"),
        ("_ms", "ms"),
        ("_us", "µs"),
        ("_bytes", "bytes"),
        ("_percent", "%"),
    ];
    let (name, unit) = UNITS
        .iter()
        .find_map(|(end, unit)| key.strip_suffix(end).map(|name| (name, format!(", {unit}"))))
        .unwrap_or((key, String::new()));
    let of_letters = |word: &str| matches!(word, "rc" | "xrc" | "qp" | "cnp" | "pfc");
    let word = |word: &str| if of_letters(word) { word.to_uppercase() } else { word.to_owned() };
    let mut name = name.split('_').map(word).collect::<Vec<_>>().join(" ");
    if let Some(first) = name.get(..1) {
        let first = first.to_uppercase();
        name.replace_range(..1, &first);
    }
    name + &unit
}
