//! A PDF file.

/// A PDF that says "Tomatoes on Tuesday".
pub fn pdf() -> Vec<u8> {
    let text = "BT /F1 12 Tf 72 720 Td (Tomatoes on Tuesday) Tj ET";
    let objects = [
        "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
        "<</Type/Pages/Kids[3 0 R]/Count 1>>".to_owned(),
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>".to_owned(),
        format!("<</Length {}>>\nstream\n{text}\nendstream", text.len()),
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned(),
    ];
    let (mut file, mut places) = ("%PDF-1.4\n".to_owned(), Vec::new());
    for (n, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", n + 1));
    }
    let start = file.len();
    file.push_str("xref\n0 6\n0000000000 65535 f \n");
    for place in &places {
        file.push_str(&format!("{place:010} 00000 n \n"));
    }
    file.push_str(&format!(
        "trailer<</Size 6/Root 1 0 R>>\nstartxref\n{start}\n%%EOF\n"
    ));
    file.into_bytes()
}
