//! Stands in until the formatter comes.
pub struct Piece {
    pub html: String,
    pub plain: String,
}
pub fn pieces(text: &str) -> Vec<Piece> {
    vec![Piece { html: text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"), plain: text.to_owned() }]
}
