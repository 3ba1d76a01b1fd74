//! The frame of a chart, and the shapes that are drawn in it.
//!
//! Called by the charts of this folder. The library that draws knows literal colours alone: those of [`ink`] are
//! names, which the page's style sheet turns into the colours and dashes of a light or dark screen, or of paper.
//! It never decides what is shown.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::text::{escape, shortened};

/// The drawing's units to a pixel of the page: the library has whole coordinates only.
pub(super) const FINE: i32 = 4;
/// Width of a chart that shares its line with another, in pixels.
const HALF: i32 = 568;
/// Width of a chart that has a line of its own, in pixels.
const WIDE: i32 = 1160;
/// Height of a row of a chart of rows, in pixels.
const ROW: i32 = 20;
const TOP: i32 = 10;
const BOTTOM: i32 = 42;
/// Room for the names of horizontal lines, right of the chart, in pixels.
const MARGIN: i32 = 118;
const TEXT: i32 = 12;
/// The library takes a font's size for more than its height.
const FONT: f64 = 1.24;

/// Colours that stand for names in the page's style sheet.
pub(super) mod ink {
    use plotters::style::RGBColor;

    /// Of lines that are told apart, each with its dashes.
    pub(in crate::page) const SERIES: [RGBColor; 6] = [
        RGBColor(0x00, 0x72, 0xB2),
        RGBColor(0xD5, 0x5E, 0x00),
        RGBColor(0x00, 0x9E, 0x73),
        RGBColor(0xCC, 0x79, 0xA7),
        RGBColor(0xE6, 0x9F, 0x00),
        RGBColor(0x56, 0xB4, 0xE9),
    ];
    /// Of axes and their text.
    pub(in crate::page) const AXIS: RGBColor = RGBColor(0x57, 0x60, 0x6A);
    /// Of the lines behind a chart.
    pub(in crate::page) const GRID: RGBColor = RGBColor(0xD8, 0xDE, 0xE4);
    /// Of lines to compare with, which are dashed.
    pub(in crate::page) const MARK: RGBColor = RGBColor(0x6E, 0x77, 0x81);
    /// Of an area behind the first line.
    pub(in crate::page) const PALE: RGBColor = RGBColor(0xBF, 0xD9, 0xEA);
    /// Of the warm-up's ground.
    pub(in crate::page) const SHADE: RGBColor = RGBColor(0xF0, 0xF3, 0xF6);

    /// As an attribute of SVG.
    pub(in crate::page) fn name(ink: RGBColor) -> String {
        format!("#{:02X}{:02X}{:02X}", ink.0, ink.1, ink.2)
    }
}

type Error = DrawingAreaErrorKind<std::io::Error>;
/// Whether it could be drawn.
pub(super) type Drawn = Result<(), Error>;

/// One axis.
pub(super) struct Axis {
    /// What it is, with its unit.
    pub(super) name: String,
    pub(super) from: f64,
    pub(super) to: f64,
    /// Writes a number beside it.
    pub(super) label: fn(f64) -> String,
}

/// What a chart looks like before anything is drawn in it.
pub(super) struct Frame {
    /// What those hear who do not see it.
    pub(super) spoken: String,
    pub(super) wide: bool,
    /// Height of the chart without its axis, in pixels.
    pub(super) height: i32,
    pub(super) x: Axis,
    /// `None`: rows, which [`Canvas::row`] names.
    pub(super) y: Option<Axis>,
    /// Whether horizontal lines will have names, right of the chart.
    pub(super) marked: bool,
}

/// Height of a chart of so many rows, in pixels.
pub(super) fn height_of_rows(rows: usize) -> i32 {
    i32::try_from(rows).unwrap_or(i32::MAX / ROW).saturating_mul(ROW)
}

/// A chart to draw in.
pub(super) struct Canvas<'a> {
    root: DrawingArea<SVGBackend<'a>, Shift>,
    chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    /// Names of horizontal lines, and where they would best stand.
    names: Vec<(i32, String)>,
}

/// The chart as SVG; a sentence if it cannot be drawn.
pub(super) fn chart(frame: &Frame, body: impl FnOnce(&mut Canvas<'_>) -> Drawn) -> String {
    let width = if frame.wide { WIDE } else { HALF };
    let height = frame.height + TOP + BOTTOM;
    let mut svg = String::new();
    if let Err(error) = paint(&mut svg, frame, (width, height), body) {
        return format!(
            "<p class=\"note\">This chart could not be drawn: {}</p>\n",
            escape(&error.to_string())
        );
    }
    // The library's own opening tag fixes its size and tells a reader nothing.
    let drawing = svg.find('>').map_or("", |end| &svg[end + 1..]);
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{drawing}",
        width * FINE,
        height * FINE,
        escape(&frame.spoken),
    )
}

fn paint<'a>(
    svg: &'a mut String,
    frame: &Frame,
    (width, height): (i32, i32),
    body: impl FnOnce(&mut Canvas<'a>) -> Drawn,
) -> Drawn {
    let fine = |pixels: i32| (pixels * FINE).unsigned_abs();
    let root = SVGBackend::with_string(svg, (fine(width), fine(height))).into_drawing_area();
    let (from, to) = frame
        .y
        .as_ref()
        .map_or_else(|| (0.0, f64::from(frame.height) / f64::from(ROW)), |axis| (axis.from, axis.to));
    let mut chart = ChartBuilder::on(&root)
        .margin_top(fine(TOP))
        .margin_left(fine(4))
        .margin_right(fine(if frame.marked { MARGIN } else { 30 }))
        .x_label_area_size(fine(BOTTOM))
        .y_label_area_size(fine(if frame.y.is_some() { 76 } else { MARGIN }))
        .build_cartesian_2d(frame.x.from..frame.x.to, from..to)?;
    let text = text(ink::AXIS);
    let mut mesh = chart.configure_mesh();
    let x_label = |v: &f64| (frame.x.label)(*v);
    let y_label = |v: &f64| frame.y.as_ref().map_or_else(String::new, |axis| (axis.label)(*v));
    mesh.light_line_style(TRANSPARENT)
        .bold_line_style(ink::GRID.stroke_width(fine(1)))
        .axis_style(ink::AXIS.stroke_width(fine(1)))
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(shortened(&frame.x.name, 90))
        .x_label_formatter(&x_label)
        .y_label_formatter(&y_label)
        .set_all_tick_mark_size(fine(5))
        .x_labels(if frame.wide { 12 } else { 7 })
        .y_labels(6);
    match &frame.y {
        Some(axis) => mesh.y_desc(shortened(&axis.name, 28)),
        None => mesh.disable_y_mesh().y_labels(0),
    };
    mesh.draw()?;
    let mut canvas = Canvas { root, chart, names: Vec::new() };
    body(&mut canvas)?;
    canvas.place_names()?;
    canvas.root.present()
}

fn text(ink: RGBColor) -> TextStyle<'static> {
    ("sans-serif", f64::from(TEXT * FINE) * FONT).into_font().color(&ink)
}

fn width_of(pixels: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few pixels")]
    let units = (pixels * f64::from(FINE)).round() as u32;
    units
}

impl Canvas<'_> {
    /// A line through `points`, `width` pixels wide.
    pub(super) fn line(&mut self, points: &[(f64, f64)], ink: RGBColor, width: f64) -> Drawn {
        let style = ink.stroke_width(width_of(width));
        self.chart.draw_series([PathElement::new(points.to_vec(), style)]).map(|_| ())
    }

    /// A dot at each point.
    pub(super) fn dots(&mut self, points: &[(f64, f64)], ink: RGBColor) -> Drawn {
        let dot = |&point| Circle::new(point, 3 * FINE, ink.filled());
        self.chart.draw_series(points.iter().map(dot)).map(|_| ())
    }

    /// The ground between two lines that go from left to right.
    pub(super) fn band(
        &mut self,
        low: &[(f64, f64)],
        high: &[(f64, f64)],
        ink: RGBColor,
        strength: f64,
    ) -> Drawn {
        let outline: Vec<_> = low.iter().chain(high.iter().rev()).copied().collect();
        if outline.len() < 3 {
            return Ok(());
        }
        self.chart.draw_series([Polygon::new(outline, ink.mix(strength).filled())]).map(|_| ())
    }

    /// The ground from `from` to `to`, as high as the chart, behind what is drawn later.
    pub(super) fn shade(&mut self, from: f64, to: f64) -> Drawn {
        let (_, y) = self.ranges();
        let ground = Rectangle::new([(from, y.0), (to, y.1)], ink::SHADE.mix(0.75).filled());
        self.chart.draw_series([ground]).map(|_| ())
    }

    /// A horizontal line to compare with, and its name right of the chart.
    pub(super) fn level(&mut self, value: f64, name: &str) -> Drawn {
        let (x, _) = self.ranges();
        self.line(&[(x.0, value), (x.1, value)], ink::MARK, 1.25)?;
        self.names.push((self.chart.backend_coord(&(x.1, value)).1, name.to_owned()));
        Ok(())
    }

    /// A vertical line to compare with, and its name beside it.
    pub(super) fn moment(&mut self, value: f64, name: &str) -> Drawn {
        let (x, y) = self.ranges();
        self.line(&[(value, y.0), (value, y.1)], ink::MARK, 1.25)?;
        let right = value > x.0 + (x.1 - x.0) * 0.6;
        let (side, gap) = if right { (HPos::Right, -6) } else { (HPos::Left, 6) };
        let (x, y) = self.chart.backend_coord(&(value, y.0 + (y.1 - y.0) * 0.55));
        self.root.draw_text(name, &text(ink::AXIS).pos(Pos::new(side, VPos::Center)), (x + gap * FINE, y))
    }

    /// A few words in place of what there is none of.
    pub(super) fn nothing(&mut self, words: &str) -> Drawn {
        let (x, y) = self.ranges();
        let place = self.chart.backend_coord(&(x.0 + (x.1 - x.0) * 0.04, y.0 + (y.1 - y.0) * 0.55));
        self.root.draw_text(words, &text(ink::AXIS).pos(Pos::new(HPos::Left, VPos::Center)), place)
    }

    /// Row `at` of `rows`, from the top: a height of 0 to 1 for each of equal parts of the time.
    pub(super) fn row(
        &mut self,
        (at, rows): (usize, usize),
        name: &str,
        heights: &[f64],
        ink: RGBColor,
    ) -> Drawn {
        let (x, _) = self.ranges();
        #[expect(clippy::cast_precision_loss, reason = "a few rows of a few hundred parts")]
        let (base, step) = ((rows - 1 - at) as f64 + 0.1, (x.1 - x.0) / heights.len().max(1) as f64);
        let (left, y) = self.chart.backend_coord(&(x.0, base + 0.4));
        let style = text(ink::AXIS).pos(Pos::new(HPos::Right, VPos::Center));
        self.root.draw_text(&shortened(name, 17), &style, (left - 6 * FINE, y))?;
        self.line(&[(x.0, base), (x.1, base)], ink::GRID, 0.75)?;
        let mut outline = vec![(x.0, base)];
        let mut height = 0.0;
        for (i, &next) in (0_u32..).zip(heights) {
            if next != height {
                let when = x.0 + f64::from(i) * step;
                outline.extend([(when, base + 0.8 * height), (when, base + 0.8 * next)]);
                height = next;
            }
        }
        outline.extend([(x.1, base + 0.8 * height), (x.1, base)]);
        if outline.len() == 3 && height == 0.0 {
            return Ok(());
        }
        self.chart.draw_series([Polygon::new(outline, ink.filled())]).map(|_| ())
    }

    fn ranges(&self) -> ((f64, f64), (f64, f64)) {
        let (x, y) = (self.chart.x_range(), self.chart.y_range());
        ((x.start, x.end), (y.start, y.end))
    }

    /// Writes the names of the horizontal lines, apart from each other.
    fn place_names(&mut self) -> Drawn {
        self.names.sort();
        let (least, lowest) = ((TEXT + 2) * FINE, self.root.dim_in_pixel().1);
        let lowest = i32::try_from(lowest).unwrap_or(i32::MAX) - BOTTOM * FINE;
        let mut below = lowest + least;
        // From the lowest up: each stands where its line is, or above the one below.
        for at in (0..self.names.len()).rev() {
            let y = self.names[at].0.min(below - least);
            self.names[at].0 = y;
            below = y;
        }
        let x = i32::try_from(self.root.dim_in_pixel().0).unwrap_or(i32::MAX) - (MARGIN - 5) * FINE;
        let style = text(ink::AXIS).pos(Pos::new(HPos::Left, VPos::Center));
        for (y, name) in core::mem::take(&mut self.names) {
            self.root.draw_text(&shortened(&name, 18), &style, (x, y))?;
        }
        Ok(())
    }
}
