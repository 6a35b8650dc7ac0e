//! A batch: answers the questions of a CSV file with the model of `$BANTAM_HOME`, for cron to run again and again. The
//! answers are kept in a folder, and a row that has one is not asked again.
//!
//! ```text
//! cargo run -- questions.csv answers/ >answers.csv
//! ```
//!
//! A line of the file is `ID,QUESTION`; everything after the first comma is the question.

use std::env::args;
use std::path::Path;

use bantam::{Builder, Context, Error, FileStore, Home, Request, Result};

/// Returns `ID,ok|failed,ANSWER` for each line, with quotes around the answer. One failure does not end the batch.
pub fn answer(builder: Builder, questions: &str, answers: &Path) -> Result<Vec<String>> {
    let agent = builder.store(FileStore::at(answers)).build()?;
    let mut rows = Vec::new();
    for line in questions.lines().filter(|line| !line.trim().is_empty()) {
        let Some((id, question)) = line.split_once(',') else {
            return Err(Error::failed(format!("a line without a comma: {line}")));
        };
        // A conversation for each row. A turn with the id of one that is over returns its answer again.
        let request = Request {
            ids: vec![id.to_owned()],
            ..Request::new(question, format!("batch_{id}"))
        };
        let response = agent.run(&request, &|_| ());
        let (state, text) = match response.error {
            None => ("ok", response.output),
            Some(e) => ("failed", e.message),
        };
        rows.push(format!("{id},{state},\"{}\"", text.replace('"', "\"\"")));
    }
    Ok(rows)
}

fn main() -> Result<()> {
    let (Some(file), Some(folder)) = (args().nth(1), args().nth(2)) else {
        return Err(Error::usage(
            "batch needs two arguments: QUESTIONS.csv FOLDER",
        ));
    };
    let questions = std::fs::read_to_string(&file).doing(&file)?;
    for row in answer(Home::user()?.agent()?, &questions, Path::new(&folder))? {
        println!("{row}");
    }
    Ok(())
}
