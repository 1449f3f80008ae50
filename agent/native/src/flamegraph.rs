//! Flame graphs, drawn by the inferno crate.

use inferno::flamegraph::{self, Options};

use crate::error::{Error, Kind, Result};

/// Draw an interactive SVG from folded stacks (`root;…;leaf count`).
pub fn draw(folded: &[String], title: String, subtitle: String, count_name: String) -> Result<String> {
    let mut options = Options::default();
    options.title = title;
    options.subtitle = Some(subtitle).filter(|text| !text.is_empty());
    options.count_name = count_name;
    options.deterministic = true;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, folded.iter().map(String::as_str), &mut svg)
        .map_err(|error| Error::new(Kind::Internal, format!("drawing the flame graph: {error}")))?;
    String::from_utf8(svg).map_err(|error| Error::new(Kind::Internal, error.to_string()))
}
