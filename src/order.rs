//! Sorts lists of any type by sorting their places: `slice::sort_by` is in the program once for each type, at 3 to 5 KB.

use std::cmp::Ordering;

/// Sorts as `slice::sort_by` does.
pub(crate) fn sort_by<T>(items: &mut Vec<T>, compare: impl Fn(&T, &T) -> Ordering) {
    let places = sorted(items.len(), &|a, b| compare(&items[a], &items[b]));
    let mut unsorted: Vec<Option<T>> = items.drain(..).map(Some).collect();
    items.extend(
        places
            .into_iter()
            .filter_map(|place| unsorted[place].take()),
    );
}

fn sorted(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|a, b| compare(*a, *b));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_stays_in_its_order() {
        let mut words = vec!["pear", "fig", "apple", "kiwi", "date", "fig"];
        sort_by(&mut words, |a, b| a.len().cmp(&b.len()));
        assert_eq!(words, ["fig", "fig", "pear", "kiwi", "date", "apple"]);
    }
}
