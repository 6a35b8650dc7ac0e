//! Unnatural input: nested, random, deep and long.

use super::{LIMIT, checked, entities, render_pieces};
use crate::computed::computed;
use crate::markdown::pieces;
use crate::rng::{Rng, below};

/// Difficult elements, especially when nested.
const NASTY: &str = "** ¦ * ¦ _ ¦ __ ¦ ~~ ¦ || ¦ ` ¦ ``` ¦ [ ¦ ]( ¦ ](http://h) ¦ ![ ¦ < ¦ > ¦ & ¦ &amp; ¦ &#0; ¦ <b> ¦ </b> ¦ </code></pre> ¦ \
    \" ¦ ' ¦ \\ ¦ \\\\ ¦ a_b_c ¦ 2*3*4 ¦ **b** ¦ *i* ¦ ***bi*** ¦ ~~s~~ ¦ ||sp|| ¦ `c` ¦ `` ` `` ¦ [l](http://h) ¦ \
    [l](http://h/\"><b>) ¦ [l](x) ¦ [](http://h) ¦ [ ](http://h) ¦ ![](http://h) ¦ <https://h/?a&b> ¦ https://h/a_b(c)_d ¦ \
    日本語 ¦ **太字**です ¦ 👨‍👩‍👧‍👦 ¦ 🇺🇳🇺 ¦ e\u{301} ¦ שלום **עולם** ¦ مرحبا ¦ \u{202e}abc ¦ \0 ¦ \u{feff} ¦ \u{200b} ¦ \t ¦ * * * ¦ \
    --- ¦ # h ¦ - l ¦ 1. l ¦ - [ ] t ¦ > q ¦ >>> q ¦ a|b ¦ ||| ¦ ~~~ ¦ \u{a0} ¦ 𝒳 ¦ **a*b_c~~d||e`f ¦ *a **b* c** ¦ \
    _a __b_ c__ ¦ [a](http://b)[c](http://d) ¦ **[l](http://h)`c`** ¦ ||a **b|| c**";

fn nasty() -> Vec<&'static str> {
    NASTY.split(" ¦ ").collect()
}

#[test]
fn nasty_things_inside_of_nasty_things_are_taken() {
    let around = "{} ¦ a{}b ¦  {}  ¦ **{}** ¦ *{}* ¦ ~~{}~~ ¦ ||{}|| ¦ `{}` ¦ [{}](http://h) ¦ ![{}](http://h) ¦ # {} ¦ > {} ¦ - {} ¦ \
        1. {}\n   {} ¦ ```\n{}\n``` ¦ ```{}\nx\n``` ¦ |{}|b|\n|-|-|\n|{}|{}| ¦ {}\n\n{} ¦ {}\n{} ¦ {}{} ¦ > > {}\n> {} ¦ \\{}";
    let mut count = 0;
    for (n, nasty) in nasty().iter().enumerate() {
        for form in around.split(" ¦ ") {
            checked(&form.replace("{}", nasty));
            count += 1;
            // Also at the end of a piece, in a third of the forms for each.
            if count % 3 == 0 {
                checked(&format!(
                    "{}{}",
                    "x ".repeat(LIMIT / 2 - 1 - n % 4),
                    form.replace("{}", nasty)
                ));
            }
        }
    }
    assert!(count > 1000, "{count}");
}

/// Returns a random text of up to `parts` parts that resembles an answer.
fn composition(dice: &mut Rng, parts: usize) -> String {
    let mut text = String::new();
    for _ in 0..=below(dice, parts) {
        match below(dice, 12) {
            0 => text.push('\n'),
            1 => text.push_str("\n\n"),
            2 => text.push(' '),
            3 => text.push_str(&" ".repeat(below(dice, 9))),
            4 => text.push_str(&"word ".repeat(below(dice, 300))),
            5 => text.push_str(
                &["x", "語", "👍🏽", "\"", "*", "`", "[", "> "][below(dice, 8)]
                    .repeat(below(dice, 700)),
            ),
            6 => text.push_str(
                [
                    "\n```rust\n",
                    "\n```\n",
                    "\n> ",
                    "\n- ",
                    "\n  1. ",
                    "\n# ",
                    "\n|a|b|\n|-|-|\n|",
                ][below(dice, 7)],
            ),
            _ => text.push_str(nasty()[below(dice, nasty().len())]),
        }
    }
    text
}

/// `BANTAM_CASES=1000000 cargo test --release --lib markdown` runs this number of cases; `BANTAM_SEED` sets the seed.
#[test]
fn random_markdown_makes_valid_messages() {
    let number =
        |text: Option<&str>, default: u64| text.map_or(default, |text| text.parse().unwrap());
    let cases = number(option_env!("BANTAM_CASES"), 600);
    let mut dice = Rng(number(option_env!("BANTAM_SEED"), 20_260));
    let mut cut = 0;
    for _ in 0..cases {
        let parts = [8, 30, 120][below(&mut dice, 3)];
        cut += u64::from(checked(&composition(&mut dice, parts)).len() > 1);
    }
    println!("{cases} compositions, {cut} of them in more than one piece");
    assert!(
        cut > cases / 10,
        "only {cut} of {cases} were long enough to be cut"
    );
}

#[test]
fn terminal_output_is_independent_of_chunking() {
    let mut dice = Rng(20_261);
    for _ in 0..200 {
        let text = composition(&mut dice, 12);
        let columns = 1 + below(&mut dice, 100);
        let whole = render_pieces(&text, columns, usize::MAX);
        for size in [1, 1 + below(&mut dice, 9)] {
            let cut = render_pieces(&text, columns, size);
            assert!(
                cut == whole,
                "{text:?} in pieces of {size}:\n{cut:?}\n{whole:?}"
            );
        }
    }
}

/// Deep, long and unbalanced input takes linear time: a megabyte in a release build, or a fortieth of it in a debug build, which
/// is ten times slower.
#[test]
fn a_megabyte_of_anything_is_quick() {
    let (length, limit) = if cfg!(debug_assertions) {
        (25_000, 40)
    } else {
        (1_000_000, 60)
    };
    let long = |part: &str| part.repeat(length / part.len());
    let nested = |open: &str, close: &str| {
        let depth = length / (open.len() + close.len());
        format!("{}x{}", open.repeat(depth), close.repeat(depth))
    };
    let parts = "*¦**a ¦*a ¦a* ¦_a ¦`¦` `` ``` ¦[¦[a](¦[a](http://h¦![¦![a](http://h) ¦](¦<http¦https://h))) ¦> ¦>¦- a\n¦  - a\n¦|a¦\
        a|b\n-|-\n¦|||¦~~a ¦||a ¦\\¦&¦<¦\n¦ ¦\u{301}¦🇺¦👍🏽¦```\n¦#¦# a\n¦__a¦a__ ¦https://h(¦(¦\"¦[a](b \"¦* ¦***a ¦a*** ¦語。¦\
        [a](http://h) ¦_a_ *b* ¦1. a\n";
    let mut texts: Vec<String> = parts.split('¦').map(long).collect();
    texts.push(nested("*a ", " a*"));
    texts.push(nested("**_a ", " a_**"));
    texts.push(nested("[", "](http://h)"));
    texts.push(nested("![", "](http://h)"));
    texts.push(nested("> - ", ""));
    texts.push(
        (0..1000)
            .map(|n| [&" ".repeat(n), "- item\n"].concat())
            .collect(),
    );
    texts.push(format!(
        "|{}\n|{}\n{}",
        "a|".repeat(length / 10),
        "-|".repeat(length / 10),
        "|b\n".repeat(length / 10)
    ));
    for text in texts {
        let part: String = text.chars().take(length / 4).collect();
        let start = computed();
        render_pieces(&part, 80, 20);
        let took = computed() - start;
        assert!(took < limit / 4, "{part:.12} took {took}0 ms at a terminal");
        let start = computed();
        let pieces = pieces(&text);
        let took = computed() - start;
        let shown = text.chars().take(12).collect::<String>();
        assert!(took < limit, "{shown:?} took {took}0 ms");
        println!("{shown:?}: {} pieces in {took}0 ms", pieces.len());
        for piece in pieces.iter().take(20).chain(pieces.iter().rev().take(3)) {
            entities::strict(&piece.html).unwrap_or_else(|error| panic!("{shown:?}: {error}"));
        }
    }
}

/// White space and similar characters, in each possible place of a line.
#[test]
fn a_run_of_white_space_longer_than_a_message_ends() {
    let forms = "{} ¦ a{}b ¦ ```\n{}x\n``` ¦ ```\na{}b{}c\n``` ¦ ```\n{} ¦ ~~~\n\n{}\n{}y\n~~~ ¦ |a|b|\n|-|-|\n|1{}2|3| ¦ \
        |a{}|b|\n|-|-|\n|{}|3| ¦ # a{}b ¦ - a{}b ¦ - {}b ¦ > a{}b ¦ > ```\n> a{}b\n> ``` ¦ `a{}b` ¦ **a{}b** ¦ \
        [a{}b](http://h)";
    for space in [' ', '\t', '\u{a0}', '\u{2003}', '\u{3000}', '\u{200b}'] {
        for count in [LIMIT - 1, LIMIT + 1, 3 * LIMIT] {
            let run = String::from(space).repeat(count);
            for form in forms.split(" ¦ ") {
                checked(&form.replace("{}", &run));
            }
        }
    }
}
