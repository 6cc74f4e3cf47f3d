//! Parity groups: what it takes to make them, what they keep, and what a read of a lost segment costs.

use crate::{
    archive::{ARCHIVES, Archive, MONTH_DAYS, ROUTES, SEGMENT_BYTES, prices},
    asked::{Asked, Series},
    mirroring::{Mirroring, SHORT_BYTES},
    second::{COLD, Stores, name, simulate},
    table::{Table, bytes, dollars, figure, percent, requests},
};
use anyhow::{Result, ensure};
use firn_mirror::Copies;
use firn_parity::{COLUMNS, PARITIES, ROW_BYTES, ROWS_MAX};
use firn_quantity::Money;
use firn_store::Route;

/// Segments of a full group: of those that are closed at 4 MiB, and so are a little longer, three fit in a column of 16 MiB.
const GROUP_SEGMENTS: u64 = COLUMNS as u64 * ((ROWS_MAX * ROW_BYTES) as u64 / (SEGMENT_BYTES + 1));
/// Segments that join at once (decision 0208).
const BATCH_SEGMENTS: u64 = (64 << 20) / SEGMENT_BYTES;
/// Three parities of 32 columns, and one per cent more for hashes and uneven columns.
const OVERHEAD_MAX: f64 = PARITIES as f64 / COLUMNS as f64 + 0.01;

/// What was measured of them.
pub struct Parities {
    /// Groups that are written once, of as many segments as fit.
    at_once: Series,
    /// Groups of an archive that grows, by batches.
    batches: Series,
    /// The same, and the copies dropped.
    dropped: Series,
    /// Bytes of a full group's objects for those of its members; the same of all groups that came of batches.
    overhead: (f64, f64),
    /// A pass in which nothing joins: with copies, and in place of copies.
    idle: [Series; 2],
    /// A read of a byte of a segment that both stores have lost.
    degraded: Asked,
    /// Cold segments that one pass saw, and how many of them are in groups after it.
    one_pass: (u64, u64),
}

async fn mirrored(stores: &Stores, sequences: std::ops::Range<u64>) -> Result<()> {
    for sequence in sequences {
        stores.put(sequence, SEGMENT_BYTES).await?;
    }
    stores.compare().await?;
    // Long enough to be cold, and to join however few there are.
    stores.env.sleep(2 * COLD).await;
    Ok(())
}

fn overhead(stores: &Stores) -> f64 {
    let status = stores.mirror.parity().status();
    status.parity_bytes as f64 / status.member_bytes as f64
}

/// So many segments in groups; what it took, and the groups' bytes for their members'. In batches, each joins as a pass of its own.
fn grouped(segments: u64, copies: Copies, batch: u64) -> Result<(Asked, f64)> {
    simulate(Some(copies), move |stores| async move {
        stores.mirror.check().await?;
        let mut asked = Asked::default();
        for from in (0..segments).step_by(usize::try_from(batch)?) {
            mirrored(&stores, from..(from + batch).min(segments)).await?;
            let before = stores.asked();
            stores.mirror.group().await?;
            asked = asked.plus(&stores.asked().since(&before));
        }
        let status = stores.mirror.parity().status();
        ensure!(status.members == segments && status.broken == 0, "{status:?}");
        let dropped = status.hold.map_or(0, |hold| hold.dropped);
        ensure!(
            dropped == if copies == Copies::Drop { segments } else { 0 },
            "{status:?}"
        );
        // A pass lists everything, however little joins in it: that is measured by itself.
        (asked.first.lists, asked.second.lists) = (0, 0);
        Ok((asked, overhead(&stores)))
    })
}

/// A pass over so many segments of which none joins.
fn idle_pass(segments: u64, copies: Copies) -> Result<Asked> {
    simulate(Some(copies), move |stores| async move {
        stores.mirror.check().await?;
        for sequence in 0..segments {
            stores.put(sequence, SHORT_BYTES).await?;
        }
        stores.compare().await?;
        // What a first pass learns it does not ask again.
        stores.mirror.group().await?;
        let before = stores.asked();
        stores.mirror.group().await?;
        Ok(stores.asked().since(&before))
    })
}

/// How many of so many cold segments are in groups after one pass.
fn one_pass(segments: u64) -> Result<u64> {
    simulate(Some(Copies::Keep), move |stores| async move {
        stores.mirror.check().await?;
        mirrored(&stores, 0..segments).await?;
        stores.mirror.group().await?;
        Ok(stores.mirror.parity().status().members)
    })
}

/// A read of a byte of a lost member of a full group, whose group object is known.
fn degraded(segments: u64) -> Result<Asked> {
    simulate(Some(Copies::Keep), move |stores| async move {
        stores.mirror.check().await?;
        mirrored(&stores, 0..segments).await?;
        stores.mirror.group().await?;
        let key = name(segments / 2);
        stores.first.delete(&key).await?;
        stores.second.delete(&key).await?;
        let reader = stores.mirror.parity().reader();
        reader.get_range(&key, 0, 1).await?;
        let before = stores.asked();
        reader.get_range(&key, 2 * ROW_BYTES as u64 + 1000, 1).await?;
        Ok(stores.asked().since(&before))
    })
}

/// Measures.
///
/// # Errors
/// The mirror's.
pub fn measure(of_test: bool) -> Result<Parities> {
    // Whole groups; in a test the largest is one.
    let size = |full: u64, small: u64| if of_test { small } else { full };
    let smallest = size(GROUP_SEGMENTS, GROUP_SEGMENTS / 4);
    let small = size(GROUP_SEGMENTS, BATCH_SEGMENTS / 2);
    let names = size(4000, 1000);
    let mut full = 0.0;
    let mut grown = 0.0;
    let at_once = Series::measured("parity groups, whole ones", "segment", smallest, |segments| {
        let (asked, overhead) = grouped(segments, Copies::Keep, GROUP_SEGMENTS)?;
        full = overhead;
        Ok(asked)
    })?;
    let batches = Series::measured("parity groups, by 64 MiB", "segment", small, |segments| {
        let (asked, overhead) = grouped(segments, Copies::Keep, BATCH_SEGMENTS)?;
        grown = overhead;
        Ok(asked)
    })?;
    let dropped = Series::measured(
        "parity groups in place of copies, whole ones",
        "segment",
        small,
        |segments| Ok(grouped(segments, Copies::Drop, GROUP_SEGMENTS)?.0),
    )?;
    let idle = [
        Series::measured("a pass in which nothing joins", "segment", names, |segments| {
            idle_pass(segments, Copies::Keep)
        })?,
        Series::measured(
            "a pass in which nothing joins, in place of copies",
            "segment",
            names,
            |segments| idle_pass(segments, Copies::Drop),
        )?,
    ];
    let seen = size(2 * GROUP_SEGMENTS, BATCH_SEGMENTS);
    Ok(Parities {
        at_once,
        batches,
        dropped,
        idle,
        overhead: (full, grown),
        degraded: degraded(GROUP_SEGMENTS)?,
        one_pass: (seen, one_pass(seen)?),
    })
}

impl Parities {
    /// What is wrong if full groups keep more than was promised.
    pub fn broken(&self) -> Vec<String> {
        let told = format!(
            "full groups keep {} of their members' bytes",
            percent(self.overhead.0)
        );
        (self.overhead.0 > OVERHEAD_MAX)
            .then_some(told)
            .into_iter()
            .collect()
    }

    /// All series.
    pub fn series(&self) -> [&Series; 5] {
        let [keeps, drops] = &self.idle;
        [&self.at_once, &self.batches, &self.dropped, keeps, drops]
    }

    /// A month of an archive: what joins in it by batches, and a pass a day, with copies or in their place.
    pub fn month(&self, archive: Archive, copies: Copies) -> Asked {
        let [keeps, drops] = &self.idle;
        let pass = match copies {
            Copies::Keep => keeps,
            Copies::Drop => drops,
        };
        let joined = self.batches.at(archive.segments_a_month());
        joined.plus(&pass.at(archive.segments()).times(MONTH_DAYS))
    }

    /// A month's storage of the parities of an archive that is all cold.
    pub fn storage(&self, archive: Archive) -> Money {
        let kept = archive.bytes() as f64 * self.overhead.1;
        prices().storage_month.estimate(kept as u64)
    }

    /// The section of the page.
    pub fn page(&self) -> String {
        let mut text = format!(
            "A full group has {GROUP_SEGMENTS} full segments: they are closed at 4 MiB and a little longer, so three of them fit in each of 32 columns of 16 MiB. Written once it takes {} GETs and {} PUTs; by batches of 64 MiB, as an archive grows, \
             {} GETs, {} PUTs and {} DELETEs a segment. A pass chooses what joins by its bytes alone: of {} cold segments one pass put {} into groups, and the rest waits for the next.\n\n",
            figure(self.at_once.each("GETs, second store") * GROUP_SEGMENTS as f64),
            figure(self.at_once.each("PUTs, second store") * GROUP_SEGMENTS as f64),
            figure(self.batches.each("GETs, second store")),
            figure(self.batches.each("PUTs, second store")),
            figure(self.batches.each("DELETEs, second store")),
            self.one_pass.0,
            self.one_pass.1,
        );
        let mut table = Table::new(&["what groups keep", "of their members' bytes", "promised"]);
        table.row([
            "full groups".to_owned(),
            percent(self.overhead.0),
            format!("{} at most", percent(OVERHEAD_MAX)),
        ]);
        table.row([
            "groups as batches left them, not all of them full".to_owned(),
            percent(self.overhead.1),
            "-".to_owned(),
        ]);
        text += table.text();
        text += "\n### Made once, of an archive that is there\n\n";
        let mut table = Table::new(&["archive", "copies", "by", "requests", "read", "cost, once"]);
        for archive in ARCHIVES {
            for (series, copies) in [(&self.at_once, "keep"), (&self.dropped, "drop")] {
                for (route, from) in ROUTES {
                    let asked = series.at(archive.segments());
                    table.row([
                        format!("{} TiB", archive.tib),
                        copies.to_owned(),
                        from.to_owned(),
                        requests(&asked),
                        bytes(asked.first.bytes_down + asked.second.bytes_down),
                        dollars(asked.bill(prices(), (route, route)).total()),
                    ]);
                }
            }
        }
        text += table.text();
        text += "\n*Beside the bucket*: beside both. The listings of the passes are in the month below. Whoever makes groups reads each segment once from the second store, and with `copies = \"drop\"` once more from the first, whole: over the internet that is all of the price.\n\n### A month, held against copies\n\n";
        let mut table = Table::new(&[
            "archive, all of it cold",
            "copies alone",
            "parities beside copies",
            "parities in place of copies",
            "of copies alone",
            "joins and daily passes, with copies",
            "the same in place of copies",
        ]);
        for archive in ARCHIVES {
            let (copies, kept) = (Mirroring::storage(archive), self.storage(archive));
            let made = [Copies::Keep, Copies::Drop].map(|copies| {
                let asked = self.month(archive, copies);
                let beside = (Route::SameRegion, Route::SameRegion);
                format!(
                    "{}; {}",
                    requests(&asked),
                    dollars(asked.bill(prices(), beside).total())
                )
            });
            let [with, in_place] = made;
            table.row([
                format!("{} TiB", archive.tib),
                dollars(copies),
                dollars(copies.saturating_plus(kept)),
                dollars(kept),
                percent(kept.as_f64() / copies.as_f64()),
                with,
                in_place,
            ]);
        }
        text += table.text();
        text += "\nStorage, and the requests of who makes parities beside the stores. A pass lists all segments that have a copy, in place of copies also those of the first store (the groups' own names, four for a group, come on top and are left out); a segment that joins in place of copies is read once more and its copy deleted, as in the table above. What is not cold yet has a copy in either case.\n\n### A read of what both have lost\n\n";
        let mut table = Table::new(&[
            "a byte of a row of 64 KiB",
            "requests",
            "read",
            "cost",
            "a segment of 4 MiB, by its rows",
        ]);
        for (route, from) in ROUTES {
            let rows = SEGMENT_BYTES / ROW_BYTES as u64;
            table.row([
                from.to_owned(),
                requests(&self.degraded),
                bytes(self.degraded.first.bytes_down + self.degraded.second.bytes_down),
                dollars(self.degraded.bill(prices(), (route, route)).total()),
                dollars(self.degraded.times(rows).bill(prices(), (route, route)).total()),
            ]);
        }
        text + table.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_keep_more_than_three_in_thirty_two_and_a_hundredth_are_told() {
        let of = |overhead| {
            let series = || Series {
                what: "",
                unit: "segment",
                sizes: [
                    (1, Asked::default()),
                    (2, Asked::default()),
                    (4, Asked::default()),
                ],
            };
            Parities {
                at_once: series(),
                batches: series(),
                dropped: series(),
                overhead: (overhead, 1.0),
                idle: [series(), series()],
                degraded: Asked::default(),
                one_pass: (2, 2),
            }
        };
        assert_eq!(of(0.1037).broken(), Vec::<String>::new());
        assert_eq!(
            of(0.1038).broken(),
            ["full groups keep 10.4 % of their members' bytes"]
        );
    }
}
