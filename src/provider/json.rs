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
        let mut written = 0;
        for (at, byte) in text.bytes().enumerate() {
            if byte >= b' ' && byte != b'"' && byte != b'\\' {
                continue;
            }
            self.text.push_str(&text[written..at]);
            written = at + 1;
            match byte {
                b'"' => self.text.push_str("\\\""),
                b'\\' => self.text.push_str("\\\\"),
                b'\n' => self.text.push_str("\\n"),
                b'\t' => self.text.push_str("\\t"),
                b'\r' => self.text.push_str("\\r"),
                other => self.text.push_str(&format!("\\u{other:04x}")),
            }
        }
        self.text.push_str(&text[written..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
