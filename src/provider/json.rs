//! Writes JSON text in one go, into the buffer that is sent.

use serde_json::Value;

/// JSON text in the making.
#[derive(Default)]
pub(super) struct Json {
    text: String,
}

impl Json {
    pub(super) fn into_text(self) -> String {
        self.text
    }

    pub(super) fn object(&mut self, fields: impl FnOnce(&mut Self)) {
        self.separate();
        self.text.push('{');
        fields(self);
        self.text.push('}');
    }

    pub(super) fn list(&mut self, items: impl FnOnce(&mut Self)) {
        self.separate();
        self.text.push('[');
        items(self);
        self.text.push(']');
    }

    /// Begins a field of an object: its value comes next.
    pub(super) fn field(&mut self, name: &str) -> &mut Self {
        self.text(name);
        self.text.push(':');
        self
    }

    pub(super) fn text(&mut self, text: &str) {
        self.pieces([text]);
    }

    /// One string, made of these pieces.
    pub(super) fn pieces<'a>(&mut self, pieces: impl IntoIterator<Item = &'a str>) {
        self.separate();
        self.text.push('"');
        for piece in pieces {
            self.escape(piece);
        }
        self.text.push('"');
    }

    pub(super) fn value(&mut self, value: &Value) {
        self.raw(&value.to_string());
    }

    /// A value that is JSON text already.
    pub(super) fn raw(&mut self, json: &str) {
        self.separate();
        self.text.push_str(json);
    }

    /// Writes the comma before a value that is not the first of its list or object, and not the value of a field.
    fn separate(&mut self) {
        let last = self.text.as_bytes().last();
        if !matches!(last, None | Some(b'{' | b'[' | b':')) {
            self.text.push(',');
        }
    }

    fn escape(&mut self, text: &str) {
        let mut rest = text;
        loop {
            let (plain, from) = rest.split_at(plain_len(rest.as_bytes()));
            self.text.push_str(plain);
            let Some(byte) = from.bytes().next() else {
                return;
            };
            match byte {
                b'"' => self.text.push_str("\\\""),
                b'\\' => self.text.push_str("\\\\"),
                b'\n' => self.text.push_str("\\n"),
                b'\t' => self.text.push_str("\\t"),
                b'\r' => self.text.push_str("\\r"),
                other => self.text.push_str(&format!("\\u{other:04x}")),
            }
            rest = &from[1..];
        }
    }
}

/// How many bytes at the start stand in a JSON string as they are. Most of a request is such text, so eight are looked at at once.
fn plain_len(bytes: &[u8]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    // The high bit of each byte that is less than `limit`, which is at most 128. A borrow can mark the byte after such a byte as
    // well, never one before it.
    let below = |word: u64, limit: u64| word.wrapping_sub(limit * EACH) & !word & HIGH;
    let is_special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    let is_plain = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        let quotes = word ^ (u64::from(b'"') * EACH);
        let backslashes = word ^ (u64::from(b'\\') * EACH);
        below(word, 32) | below(quotes, 1) | below(backslashes, 1) == 0
    };
    let words = bytes.chunks_exact(8);
    let words = words.map_while(|word| word.try_into().ok());
    let start = 8 * words.take_while(is_plain).count();
    let special = bytes[start..].iter().position(is_special);
    special.map_or(bytes.len(), |at| start + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_byte_at_every_place_of_a_word_is_written_as_it_is_read() {
        for special in (0..=0x9f).filter_map(char::from_u32) {
            for at in 0..20 {
                let text = format!("{}{special}{special}ü{}", "x".repeat(at), "y".repeat(9));
                let mut json = Json::default();
                json.text(&text);
                assert_eq!(
                    serde_json::from_str::<String>(&json.into_text()).unwrap(),
                    text
                );
            }
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let odd = "a\"b\\c\nd\te\r\u{1}\u{1f}€ {[:,]} \u{2028}";
        let mut json = Json::default();
        json.object(|json| {
            json.field("text").text(odd);
            json.field("pieces").pieces(["a:", "\"", "b"]);
            json.field("empty").list(|_| ());
            json.field("list").list(|json| {
                json.text("{");
                json.raw("1");
                json.value(&json!({"x": [true]}));
                json.object(|_| ());
                json.text("data:AA==");
            });
            json.field(odd).raw("null");
        });
        let read: Value = serde_json::from_str(&json.into_text()).unwrap();
        let mut wanted = json!({"text": odd, "pieces": "a:\"b", "empty": [], "list": ["{", 1, {"x": [true]}, {}, "data:AA=="]});
        wanted[odd] = Value::Null;
        assert_eq!(read, wanted);
    }
}
