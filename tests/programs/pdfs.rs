//! What `pdftotext` reads in a PDF.

use crate::harness::Home;
use crate::model::{Model, Reply};
use crate::pdf::pdf;

#[test]
fn a_pdf_goes_as_a_file_and_as_its_text_to_a_model_that_takes_none() {
    let refusal = Reply::error(
        400,
        "messages[1]: unknown variant `file`, expected `text` or `image_url`",
    );
    let model = Model::scripted([
        Reply::text("Tomatoes."),
        refusal,
        Reply::text("Tuesday."),
        Reply::text("Yes."),
    ]);
    let home = Home::with(&model.config());
    let file = home.write("plan.pdf", pdf());
    let ask = |args: &[&str]| {
        home.bantam()
            .args(["agent", "--new", "-m", "what?", "-a"])
            .arg(&file)
            .args(args)
            .run()
    };
    ask(&[]).exits(0).prints("Tomatoes.\n");
    let part = model.request(0).messages()[1]["content"][1].clone();
    assert_eq!(part["type"], "file");
    assert!(
        part["file"]["file_data"]
            .as_str()
            .unwrap()
            .starts_with("data:application/pdf;base64,JVBERi0"),
        "{part}"
    );
    ask(&["-v"])
        .exits(0)
        .prints("Tuesday.\n")
        .says("takes no PDF files");
    for request in [model.request(2), {
        ask(&[]).exits(0);
        model.request(3)
    }] {
        let user = request.last("user");
        assert!(
            user.contains("[the text of a PDF]\n```\nTomatoes on Tuesday\n```"),
            "{user}"
        );
    }
}
