use super::*;
use crate::fs::hostile;
use crate::testing;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn temp_volume() -> (tempfile::TempDir, PathBuf, Dir) {
    let temp = testing::dir();
    let path = temp.path().join("volume");
    fs::create_dir(&path).unwrap();
    let dir = Dir::trusted(&path).unwrap();
    (temp, path, dir)
}

fn payload(files: &[(&str, &str)]) -> Payload {
    let file = |text: &str| PayloadFile { bytes: text.as_bytes().to_vec(), mode: 0o644 };
    Payload(files.iter().map(|(path, text)| (PathBuf::from(path), file(text))).collect())
}

type Files = BTreeMap<PathBuf, (Vec<u8>, u32)>;

/// The files below a directory with their modes, links followed and without `..` names; `None` when they change meanwhile.
fn read(dir: &Path, prefix: &Path, found: &mut Files) -> Option<()> {
    for entry in fs::read_dir(dir).ok()? {
        let name = entry.ok()?.file_name();
        if name.as_bytes().starts_with(b"..") {
            continue;
        }
        let (path, shown) = (dir.join(&name), prefix.join(&name));
        let metadata = fs::metadata(&path).ok()?;
        if metadata.is_dir() {
            read(&path, &shown, found)?;
        } else {
            found.insert(shown, (fs::read(&path).ok()?, metadata.permissions().mode() & 0o7777));
        }
    }
    Some(())
}

/// The files that a user sees.
fn seen(root: &Path) -> Files {
    let mut found = Files::new();
    read(root, Path::new(""), &mut found).unwrap();
    found
}

fn expected(payload: &Payload) -> Files {
    payload.0.iter().map(|(path, file)| (path.clone(), (file.bytes.clone(), file.mode))).collect()
}

fn names(root: &Path) -> Vec<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = fs::read_dir(root).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn files_are_written_changed_and_removed() {
    let (_temp, path, root) = temp_volume();
    let first = payload(&[("a", "1"), ("dir/b", "2"), ("dir/deep/c", "3")]);
    assert!(write(&root, &first).unwrap());
    assert_eq!(seen(&path), expected(&first));
    let second = payload(&[("a", "1"), ("dir/b", "changed"), ("e", "5")]);
    assert!(write(&root, &second).unwrap());
    assert_eq!(seen(&path), expected(&second));
    // One version, the link to it, and a link for each name.
    assert_eq!(names(&path).len(), 1 + 1 + 3, "{:?}", names(&path));
    assert!(write(&root, &Payload::default()).unwrap());
    assert_eq!(seen(&path), BTreeMap::new());
    assert_eq!(names(&path).len(), 2);
}

#[test]
fn nothing_is_rewritten_when_nothing_changed() {
    let (_temp, path, root) = temp_volume();
    let files = payload(&[("a", "1"), ("dir/b", "2")]);
    write(&root, &files).unwrap();
    let look = || (fs::metadata(path.join("a")).unwrap().ino(), names(&path));
    let before = look();
    assert!(!write(&root, &files).unwrap());
    assert_eq!(look(), before);
}

#[test]
fn a_changed_mode_is_a_change() {
    let (_temp, path, root) = temp_volume();
    let mut files = payload(&[("a", "1")]);
    for mode in [0o400, 0o777, 0o600] {
        files.0.values_mut().for_each(|file| file.mode = mode);
        assert!(write(&root, &files).unwrap());
        assert_eq!(seen(&path), expected(&files));
    }
}

#[test]
fn a_file_can_become_a_directory() {
    let (_temp, path, root) = temp_volume();
    for files in [payload(&[("a", "1")]), payload(&[("a/b", "2")]), payload(&[("a", "3")])] {
        write(&root, &files).unwrap();
        assert_eq!(seen(&path), expected(&files));
    }
}

#[test]
fn paths_out_of_the_volume_are_refused() {
    let (_temp, path, root) = temp_volume();
    write(&root, &payload(&[("kept", "1")])).unwrap();
    for bad in ["", "/etc/passwd", "..", "../x", "a/../../x", "..data", "..data/x", "./a", "a/", "a//b"] {
        assert!(matches!(write(&root, &payload(&[(bad, "x")])), Err(AtomicWriteError::Path(_))), "{bad:?}");
    }
    assert!(matches!(write(&root, &payload(&[("a", "1"), ("a/b", "2")])), Err(AtomicWriteError::Clash(_))));
    assert_eq!(seen(&path), expected(&payload(&[("kept", "1")])));
}

#[test]
fn the_rest_of_a_crash_is_removed() {
    let (_temp, path, root) = temp_volume();
    write(&root, &payload(&[("a", "old"), ("gone", "x")])).unwrap();
    let new = payload(&[("a", "new"), ("b", "x")]);
    // The agent died while it wrote the version.
    fs::create_dir(path.join("..half")).unwrap();
    fs::write(path.join("..half/a"), "ne").unwrap();
    assert_eq!(seen(&path), expected(&payload(&[("a", "old"), ("gone", "x")])));
    // The agent died before it replaced the link.
    symlink("..half", path.join(NEW_DATA)).unwrap();
    write(&root, &new).unwrap();
    assert_eq!(seen(&path), expected(&new));
    // The agent died after that: the names are those of the last version.
    fs::remove_file(path.join("b")).unwrap();
    symlink("..data/gone", path.join("gone")).unwrap();
    assert!(!write(&root, &new).unwrap());
    assert_eq!(seen(&path), expected(&new));
    assert_eq!(names(&path).len(), 4, "{:?}", names(&path));
}

#[test]
fn entries_of_a_guest_do_not_mislead_the_agent() {
    let (_temp, path, root) = temp_volume();
    let (outside, ..) = temp_volume();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    let files = payload(&[("a", "1"), ("dir/b", "2")]);
    let attacks: [&dyn Fn(); 8] = [
        &|| hostile::fill(&path, outside.path()),
        &|| {
            // Another version, or a directory outside, in place of the current version.
            fs::remove_file(path.join(DATA)).unwrap();
            symlink(outside.path(), path.join(DATA)).unwrap();
        },
        &|| {
            fs::remove_file(path.join(DATA)).unwrap();
            fs::create_dir_all(path.join(DATA).join("x/y")).unwrap();
        },
        &|| {
            fs::remove_file(path.join(DATA)).unwrap();
            symlink("..", path.join(DATA)).unwrap();
        },
        &|| {
            symlink(outside.path(), path.join(NEW_DATA)).unwrap();
        },
        &|| {
            // A file of the current version is a link to something else.
            fs::remove_file(path.join("..data/a")).unwrap();
            symlink(outside.path().join("kept"), path.join("..data/a")).unwrap();
        },
        &|| {
            fs::remove_dir_all(path.join("..data/dir")).unwrap();
            symlink(outside.path(), path.join("..data/dir")).unwrap();
        },
        &|| {
            fs::remove_file(path.join("a")).unwrap();
            fs::create_dir_all(path.join("a/full")).unwrap();
        },
    ];
    for (number, attack) in attacks.iter().enumerate() {
        write(&root, &files).unwrap();
        attack();
        write(&root, &files).unwrap();
        assert_eq!(seen(&path), expected(&files), "attack {number}");
        assert_eq!(names(&path).len(), 4, "attack {number}: {:?}", names(&path));
        assert_eq!(names(outside.path()), ["kept", "volume"], "attack {number}");
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    }
}

#[test]
fn no_link_is_followed_whenever_it_appears() {
    let (_temp, path, root) = temp_volume();
    let (outside, ..) = temp_volume();
    fs::create_dir_all(outside.path().join("dir/deep")).unwrap();
    fs::write(outside.path().join("dir/kept"), "kept").unwrap();
    let before = hostile::snapshot(outside.path());
    let (old, new) = (
        payload(&[("dir/deep/a", "old"), ("dir/b", "old")]),
        payload(&[("dir/deep/a", "new"), ("dir/b", "old"), ("other/c", "new")]),
    );
    let attack = {
        let (path, outside) = (path.clone(), outside.path().to_owned());
        move || hostile::replace_by_links(&path, &outside)
    };
    hostile::at_every_moment(
        || assert!(write(&root, &old).is_ok()),
        attack,
        // It may fail, because the guest interferes, but it must not do harm.
        || drop(write(&root, &new)),
        || {
            assert_eq!(hostile::snapshot(outside.path()), before);
            write(&root, &new).unwrap();
            assert_eq!(seen(&path), expected(&new));
        },
    );
}

#[test]
fn a_race_while_the_agent_writes_stays_inside() {
    let (_temp, path, root) = temp_volume();
    let (outside, ..) = temp_volume();
    fs::create_dir_all(outside.path().join("dir")).unwrap();
    fs::write(outside.path().join("dir/kept"), "kept").unwrap();
    for round in 0..100 {
        let text = round.to_string();
        let swapper = hostile::Swapper::start(&path, "dir", outside.path());
        // It may fail, because the guest interferes, but it must not do harm.
        let _ = write(&root, &payload(&[("dir/b", &text)]));
        swapper.stop();
        let files = payload(&[("dir/b", &text), ("a", &text)]);
        write(&root, &files).unwrap();
        assert_eq!(seen(&path), expected(&files));
    }
    assert_eq!(names(outside.path()), ["dir", "volume"]);
    assert_eq!(names(&outside.path().join("dir")), ["kept"]);
}

/// A payload whose files all have the number of their version.
fn version(number: u64, shape: &BTreeSet<u8>) -> Payload {
    let path = |n| if n % 3 == 0 { format!("dir{}/f{n}", n % 2) } else { format!("f{n}") };
    // Long enough to take more than one write to the disk.
    let (number, text) = (number.to_string(), number.to_string().repeat(3000));
    let (paths, count): (Vec<_>, _) = (shape.iter().map(path).collect(), shape.len().to_string());
    let files = paths.iter().map(|path| (path.as_str(), text.as_str()));
    payload(&files.chain([("count", count.as_str()), ("version", number.as_str())]).collect::<Vec<_>>())
}

/// Reads the version of one `..data`; `None` when it was replaced meanwhile.
fn read_once(root: &Path) -> Option<Files> {
    let link = || fs::read_link(root.join(DATA)).ok();
    let before = link()?;
    let mut found = Files::new();
    read(&root.join(&before), Path::new(""), &mut found)?;
    // A version that was removed while it was read does not count.
    (link()? == before).then_some(found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_reader_sees_one_complete_version(
        shapes in prop::collection::vec(prop::collection::btree_set(0u8..12, 0..8), 2..25),
    ) {
        let (_temp, path, root) = temp_volume();
        write(&root, &version(0, &shapes[0])).unwrap();
        let (ended, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let torn = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let Some(found) = read_once(&path) else { continue };
                    let text = |name: &str| String::from_utf8_lossy(&found[Path::new(name)].0).into_owned();
                    let (number, count) = (text("version"), text("count"));
                    let whole = found.len().to_string() == (count.parse::<u64>().unwrap() + 2).to_string()
                        && found.iter().all(|(path, (bytes, _))| {
                            let named = path == Path::new("version") || path == Path::new("count");
                            named || *bytes == number.repeat(3000).into_bytes()
                        });
                    if !whole {
                        return Some(found);
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                None
            });
            for (number, shape) in (1..).zip(&shapes) {
                write(&root, &version(number, shape)).unwrap();
            }
            // At least one read has succeeded.
            while reads.load(Ordering::Relaxed) == 0 && !reader.is_finished() {
                std::thread::yield_now();
            }
            ended.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        prop_assert!(torn.is_none(), "{torn:?}");
        let last = version(shapes.len() as u64, shapes.last().unwrap());
        prop_assert_eq!(seen(&path), expected(&last));
    }
}

#[test]
fn names_that_are_the_same_on_a_case_insensitive_disk_are_refused() {
    let (_temp, path, root) = temp_volume();
    let files = payload(&[("Config", "1"), ("config", "2")]);
    // As on APFS, where a file has both names.
    let fold = {
        let path = path.clone();
        move || {
            for version in names(&path) {
                let version = path.join(version);
                let _ = fs::hard_link(version.join("Config"), version.join("config"));
            }
        }
    };
    let told = std::cell::RefCell::new(Vec::new());
    hostile::at_every_moment(
        || {},
        fold,
        || told.borrow_mut().extend(write(&root, &files).err().map(|error| error.to_string())),
        || write(&root, &Payload::default()).map(drop).unwrap(),
    );
    let words = "`Config` and `config` are the same file on this host, which does not tell upper from lower case: \
                 rename one of them, or leave it out with `items`";
    assert!(told.borrow().iter().any(|said| said == words), "{told:?}");
}
