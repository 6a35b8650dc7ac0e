//! Finds notes by what they mean: a model makes a vector of each passage, and vectors that point the same way mean the same.
//!
//! The vectors are kept under the checksum of their passage, so that only what changed is sent again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::CallContext;
use super::memory::{Passage, show_passage};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::json::from_json;
use crate::storage::{self, Durability, Lock};
use crate::usage::Budget;

/// Passages to show.
const SHOWN: usize = 5;
/// Texts of one request.
const BATCH: usize = 64;
/// How long to wait for another search.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a vector for each text, as many as there are.
type Embed = dyn Fn(&[&str], &Cancel, &Budget) -> Result<Vec<Vec<f32>>> + Send + Sync;

pub(crate) struct Meaning {
    /// The model and where it is: vectors of different models do not compare.
    pub model: String,
    pub embed: Box<Embed>,
    /// The file that keeps the vectors, and its lock.
    pub file: PathBuf,
    pub lock: PathBuf,
}

#[derive(Default, Deserialize, Serialize)]
struct Vectors {
    model: String,
    /// By the checksum of the passage.
    vectors: BTreeMap<String, String>,
}

impl Meaning {
    /// The passages of notes that are nearest to a query.
    pub(super) fn search(
        &self,
        passages: &[Passage],
        query: &str,
        turn: &CallContext,
    ) -> Result<String> {
        let vectors = self.vectors_of(passages, turn)?;
        let query = (self.embed)(&[query], turn.cancel, turn.budget)?
            .pop()
            .map(|vector| quantized(&vector))
            .unwrap_or_default();
        let mut ranked: Vec<(f32, &Passage)> = vectors
            .iter()
            .map(|vector| cosine(&query, vector))
            .zip(passages)
            .collect();
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let shown = ranked.iter().take(SHOWN);
        Ok(shown.map(|(_, passage)| show_passage(passage)).collect())
    }

    /// The vector of each passage: the kept one, else a new one, which is kept.
    fn vectors_of(&self, passages: &[Passage], turn: &CallContext) -> Result<Vec<Vec<u8>>> {
        let texts: Vec<String> = passages
            .iter()
            .map(|(key, _, text)| format!("{key}\n{text}"))
            .collect();
        let sum =
            |text: &String| format!("{:08x}{:x}", crc32fast::hash(text.as_bytes()), text.len());
        let sums: Vec<String> = texts.iter().map(sum).collect();
        let _lock = Lock::acquire(&self.lock, PATIENCE, turn.cancel)?;
        let file = fs_err::read(&self.file)
            .ok()
            .and_then(|bytes| from_json::<Vectors>(&bytes).ok());
        let mut known = file
            .filter(|known| known.model == self.model)
            .unwrap_or_default();
        known.model.clone_from(&self.model);
        let before = known.vectors.len();
        known.vectors.retain(|sum, _| sums.contains(sum));
        let keep = |known: &Vectors| {
            storage::replace(&self.file, &serde_json::to_vec(known)?, Durability::Later)
                .doing("keeping the vectors of notes")
        };
        if known.vectors.len() < before {
            keep(&known)?;
        }
        let missing: Vec<usize> = (0..texts.len())
            .filter(|n| !known.vectors.contains_key(&sums[*n]))
            .collect();
        for batch in missing.chunks(BATCH) {
            let inputs: Vec<&str> = batch.iter().map(|n| texts[*n].as_str()).collect();
            let rows = batch
                .iter()
                .zip((self.embed)(&inputs, turn.cancel, turn.budget)?);
            known.vectors.extend(
                rows.map(|(n, vector)| (sums[*n].clone(), STANDARD.encode(quantized(&vector)))),
            );
            // After each batch, so that a later failure loses nothing.
            keep(&known)?;
        }
        let vector = |sum| {
            known
                .vectors
                .get(sum)
                .and_then(|text| STANDARD.decode(text).ok())
                .unwrap_or_default()
        };
        Ok(sums.iter().map(vector).collect())
    }
}

/// A vector in bytes, from 1 to 255 with 128 for zero: its length does not matter, only where it points.
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

/// The cosine of the angle between two vectors; 0 if they cannot be compared.
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
