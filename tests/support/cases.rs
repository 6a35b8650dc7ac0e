//! Cases of tests in a text file: records between empty lines, one field a line. `⏎` stands for a line feed.

pub fn read<const FIELDS: usize>(file: &str) -> Vec<[String; FIELDS]> {
    let record = |text: &str| {
        let fields = text.lines().map(|line| line.replace('⏎', "\n"));
        fields
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_else(|_| panic!("{text:?}"))
    };
    file.trim_end().split("\n\n").map(record).collect()
}
