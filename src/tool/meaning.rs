//! Finds notes by meaning: a model computes a vector for each passage, and similar meanings have similar directions.
//!
//! Vectors are stored by the checksum of their passage, so that only changed passages are sent again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::CallContext;
use super::memory::{Passage, show_passage};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::json::from_json;
use crate::storage::{self, Durability};
use crate::usage::Budget;

/// Number of passages to show.
const SHOWN: usize = 5;
/// Number of texts per request.
const BATCH: usize = 64;

/// Function that computes a vector for each text.
type Embed = dyn Fn(&[&str], &Cancel, &Budget) -> Result<Vec<Vec<f32>>> + Send + Sync;

pub(crate) struct Meaning {
    /// Model and its address, because vectors of different models cannot be compared.
    pub model: String,
    pub embed: Box<Embed>,
    /// File with the vectors. Two searches at the same time may both compute new ones.
    pub file: PathBuf,
}

#[derive(Default, Deserialize, Serialize)]
struct Vectors {
    model: String,
    /// Vectors in base64, keyed by the checksum of the passage.
    vectors: BTreeMap<String, String>,
}

impl Meaning {
    /// Returns the passages of notes that are nearest to a query.
    pub(super) fn search(
        &self,
        passages: &[Passage],
        query: &str,
        turn: &CallContext,
    ) -> Result<String> {
        let vectors = self.vectors_of(passages, turn)?;
        let query = (self.embed)(&[query], turn.cancel, turn.budget)?.concat();
        let query = quantized(&query);
        let nearness = vectors.iter().map(|vector| cosine(&query, vector));
        let mut ranked: Vec<(f32, &Passage)> = nearness.zip(passages).collect();
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let shown = ranked.iter().take(SHOWN);
        Ok(shown.map(|(_, passage)| show_passage(passage)).collect())
    }

    /// Returns the vector of each passage. Computes missing vectors, and stores those of all passages.
    fn vectors_of(&self, passages: &[Passage], turn: &CallContext) -> Result<Vec<Vec<u8>>> {
        let text = |(key, _, text): &Passage| format!("{key}\n{text}");
        let texts: Vec<String> = passages.iter().map(text).collect();
        let sum = |text: &str| format!("{:08x}{:x}", crc32fast::hash(text.as_bytes()), text.len());
        let sums: Vec<String> = texts.iter().map(|text| sum(text)).collect();
        let file = fs_err::read(&self.file).unwrap_or_default();
        let mut known = from_json::<Vectors>(&file).unwrap_or_default();
        if known.model != self.model {
            known = Vectors {
                model: self.model.clone(),
                ..Vectors::default()
            };
        }
        let before = known.vectors.len();
        known.vectors.retain(|sum, _| sums.contains(sum));
        let texts = texts.iter().map(String::as_str);
        let missing: Vec<&str> = texts
            .filter(|text| !known.vectors.contains_key(&sum(text)))
            .collect();
        let computed: Result<()> = missing.chunks(BATCH).try_for_each(|batch| {
            let vectors = (self.embed)(batch, turn.cancel, turn.budget)?;
            let encode = |vector: &Vec<f32>| STANDARD.encode(quantized(vector));
            let vectors = vectors.iter().map(encode);
            let sums = batch.iter().map(|text| sum(text));
            known.vectors.extend(sums.zip(vectors));
            Ok(())
        });
        // Also after a failure, because a message may make only some calls.
        if !missing.is_empty() || known.vectors.len() < before {
            let json = serde_json::to_vec(&known)?;
            storage::replace(&self.file, &json, Durability::Later)
                .doing("keeping the vectors of notes")?;
        }
        computed?;
        let vectors = sums.iter().map(|sum| known.vectors.get(sum));
        let decoded = vectors.map(|text| STANDARD.decode(text?).ok());
        Ok(decoded.map(Option::unwrap_or_default).collect())
    }
}

/// Converts a vector to bytes from 1 to 255, with 128 for zero. Only its direction matters, so its length is lost.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 1 to 255
fn quantized(vector: &[f32]) -> Vec<u8> {
    let most = vector
        .iter()
        .fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
    vector
        .iter()
        .map(|x| (x / most * 127.0 + 128.0).round() as u8)
        .collect()
}

/// Returns the cosine of the angle between two vectors; 0 if they cannot be compared.
fn cosine(a: &[u8], b: &[u8]) -> f32 {
    let dot = |a: &[u8], b: &[u8]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (f32::from(*a) - 128.0) * (f32::from(*b) - 128.0))
            .sum::<f32>()
    };
    if a.len() != b.len() {
        return 0.0;
    }
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f32::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_point_the_same_way_are_near() {
        let near = |a: &[f32], b: &[f32]| cosine(&quantized(a), &quantized(b));
        assert!(near(&[1.0, 2.0, -3.0], &[10.0, 20.0, -30.0]) > 0.999);
        assert!(near(&[1.0, 0.0], &[0.0, 1.0]).abs() < 0.01);
        assert!(near(&[1.0, 0.5], &[-1.0, -0.5]) < -0.999);
        assert!(near(&[0.1, 0.9], &[0.2, 0.8]) > near(&[0.1, 0.9], &[0.5, 0.5]));
        for odd in [&[][..], &[0.0, 0.0], &[1.0], &[f32::NAN, 1.0]] {
            assert!(near(odd, &[1.0, 1.0]).abs() <= 1.0);
        }
    }
}
