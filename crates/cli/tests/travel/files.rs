//! `forkd pack` and `forkd unpack`.

use crate::support::{Controller, text};

#[test]
fn a_bundle_arrives_in_an_empty_store_and_costs_nothing_the_second_time() {
    let (from, to) = (Controller::with_chain(), Controller::empty());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("b.forkd");
    let packed = from.run(&["pack", "--tag", "b", "--out", text(&file)]).moved();
    assert!(packed.objects_moved == packed.objects && packed.objects > 4, "{packed:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let unpacked = to.run(&["unpack", text(&file)]).moved();
    assert_eq!((unpacked.tag.as_str(), &unpacked.id), ("b", &packed.id));
    assert_eq!((unpacked.objects_moved, unpacked.bytes_moved), (packed.objects, packed.bytes_moved));
    assert_eq!(unpacked.snapshots.iter().map(|s| s.tag.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    to.is_sound_with(2);
    let again = to.run(&["unpack", text(&file)]).moved();
    assert_eq!((again.objects_moved, again.objects), (0, packed.objects));

    // What it unpacked it packs alike.
    let back = folder.path().join("back.forkd");
    to.run(&["pack", "--tag", "b", "--out", text(&back)]).moved();
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(&back).unwrap());
    let words = to.command(&["unpack", text(&file), "--tag", "other"]).output().unwrap();
    assert_eq!(words.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&words.stderr).contains("here already, as \"b\""), "{words:?}");
}

#[test]
fn a_tag_that_is_taken_a_thin_bundle_and_a_damaged_one_are_refused_and_leave_nothing() {
    let (from, to) = (Controller::with_chain(), Controller::empty());
    let folder = tempfile::tempdir().unwrap();
    let (thin, whole, bad) =
        (folder.path().join("thin"), folder.path().join("whole"), folder.path().join("bad"));
    from.run(&["pack", "--tag", "b", "--thin", "--out", text(&thin)]).moved();
    from.run(&["pack", "--tag", "b", "--out", text(&whole)]).moved();
    from.run(&["pack", "--tag", "nope", "--out", text(&bad)]).fails_with(3);
    assert!(!bad.exists());

    assert!(to.run(&["unpack", text(&thin)]).fails_with(4).contains("\"py\""));
    let bytes = std::fs::read(&whole).unwrap();
    for (what, content) in [
        ("cut off", bytes[..bytes.len() / 2].to_vec()),
        ("with something behind it", [&bytes[..], b"x"].concat()),
        ("no bundle", b"x".repeat(10_000)),
    ] {
        std::fs::write(&bad, content).unwrap();
        let said = to.run(&["unpack", text(&bad)]).fails_with(2);
        assert!(said.contains("the bundle is refused"), "{what}: {said}");
        to.is_sound_with(0);
    }
    to.run(&["unpack", text(&folder.path().join("none"))]).fails_with(3);

    let third = Controller::with_chain();
    let said = third.run(&["unpack", text(&whole)]).fails_with(4);
    assert!(said.contains("the tag \"b\" is taken"), "{said}");
    third.is_sound_with(2);
    let renamed = third.run(&["unpack", text(&whole), "--tag", "mine"]).moved();
    assert_eq!(renamed.tag, "mine");
    third.is_sound_with(3);
    // The image is there: now the thin one is enough.
    to.run(&["unpack", text(&whole)]).moved();
    to.run(&["rmi", "b", "a"]).0.status.success().then_some(()).unwrap();
    assert_eq!(to.snapshots(), 0);
    to.run(&["unpack", text(&thin)]).moved();
    to.is_sound_with(2);
}
