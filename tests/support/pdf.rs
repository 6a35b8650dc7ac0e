//! PDF files.

/// Returns a PDF with the text "Tomatoes on Tuesday".
pub fn pdf() -> Vec<u8> {
    with_pages(&["Tomatoes on Tuesday"])
}

/// Returns a PDF with a page for each text, each word on a separate line.
pub fn with_pages(texts: &[impl AsRef<str>]) -> Vec<u8> {
    let mut objects = vec![
        "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
        String::new(),
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned(),
    ];
    let mut kids = String::new();
    for text in texts {
        let (page, content) = (objects.len() + 1, objects.len() + 2);
        kids.push_str(&format!("{page} 0 R "));
        let mut lines = String::new();
        for line in text.as_ref().lines() {
            lines.push_str(&format!("({line}) Tj 0 -12 Td\n"));
        }
        let text = format!("BT /F1 12 Tf 72 720 Td {lines} ET");
        objects.push(format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents {content} 0 R/Resources<</Font<</F1 3 0 R>>>>>>"
        ));
        objects.push(format!(
            "<</Length {}>>\nstream\n{text}\nendstream",
            text.len()
        ));
    }
    let count = texts.len();
    objects[1] = format!("<</Type/Pages/Kids[{kids}]/Count {count}>>");
    let objects: Vec<Vec<u8>> = objects.into_iter().map(String::into_bytes).collect();
    of_objects(&objects, "")
}

/// Returns a PDF of these objects, of which the first is the catalog, with `trailer` added to its trailer.
pub fn of_objects(objects: &[Vec<u8>], trailer: &str) -> Vec<u8> {
    let (mut file, mut places) = (b"%PDF-1.4\n".to_vec(), Vec::new());
    for (n, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.extend(format!("{} 0 obj\n", n + 1).bytes());
        file.extend_from_slice(object);
        file.extend(b"\nendobj\n");
    }
    let (start, count) = (file.len(), objects.len() + 1);
    file.extend(format!("xref\n0 {count}\n0000000000 65535 f \n").bytes());
    for place in &places {
        file.extend(format!("{place:010} 00000 n \n").bytes());
    }
    let end = format!("trailer<</Size {count}/Root 1 0 R{trailer}>>\nstartxref\n{start}\n%%EOF\n");
    file.extend(end.bytes());
    file
}
