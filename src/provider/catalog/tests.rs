//! Model lists in the formats of the hosts, and the default of each list.

use super::*;
use serde_json::json;

#[test]
fn a_model_is_described_in_every_hosts_own_words() {
    for row in include_str!("../../../tests/corpus/wire/offers.jsonl").lines() {
        let (told, window, tools, images): (Value, _, _, _) = serde_json::from_str(row).unwrap();
        assert_eq!(
            offer(&told),
            Some(Offer {
                id: "m".to_owned(),
                window,
                tools,
                images,
                ..Offer::default()
            }),
            "{told}"
        );
    }
    assert_eq!(offer(&json!({"object": "model"})), None);
}

/// Returns the default of a list of ids and creation times.
fn picked(vendor: &str, list: &[(&str, u64)]) -> Option<String> {
    let row = |(id, created): &(&str, u64)| offer(&json!({"id": id, "created": created}));
    let offers: Vec<Offer> = list.iter().filter_map(row).collect();
    let prefer = vendors::find(vendor).map_or(&[][..], |vendor| vendor.prefer);
    pick(&offers, prefer).map(|offer| offer.id.clone())
}

#[test]
fn default_of_each_vendors_list() {
    // Vendor, expected default, and list of ids with their times. A date is no version, and an id without one is preferred.
    for row in include_str!("../../../tests/corpus/wire/defaults.jsonl").lines() {
        let (vendor, id, list): (&str, &str, Vec<(&str, u64)>) = serde_json::from_str(row).unwrap();
        assert_eq!(picked(vendor, &list).as_deref(), Some(id), "{vendor}");
    }
    assert_eq!(
        picked("acme", &[("embedder", 0), ("a", 1), ("b", 2)]).as_deref(),
        Some("a")
    );
    assert_eq!(picked("openai", &[("o5", 1)]), None);
}
