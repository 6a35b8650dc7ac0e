//! Tests `.github/install.sh` with a directory of release files, and the package that `.github/deb` makes of them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::harness::{Home, has_all};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.github/install.sh");
const TARGETS: [(&str, &str); 4] = [
    ("x86_64", "x86_64-unknown-linux-musl"),
    ("aarch64", "aarch64-unknown-linux-musl"),
    ("armv7l", "armv7-unknown-linux-musleabihf"),
    ("armv6l", "arm-unknown-linux-musleabihf"),
];

/// Makes a release in `release/` whose program for `target` is this shell script.
fn release(home: &Home, target: &str, program: &str) {
    let name = format!("bantam-9.9.9-{target}");
    let file = home.write(&format!("release/{name}/bantam"), program);
    fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
    let pack = format!(
        "cd release && tar -czf {name}.tar.gz {name} && rm -r {name} && sha256sum -- *.tar.gz >SHA256SUMS"
    );
    let packed = Command::new("sh")
        .args(["-c", &pack])
        .current_dir(home.path(""))
        .status();
    assert!(packed.unwrap().success());
}

/// Runs the script on a machine with this name, as reported by `bin/uname`.
fn install(home: &Home, machine: &str) -> Output {
    let uname = home.write("bin/uname", format!("#!/bin/sh\necho {machine}\n"));
    fs::set_permissions(uname, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", home.path("bin").display());
    Command::new("sh")
        .arg(SCRIPT)
        .arg(home.path("release"))
        .env_clear()
        .env("PATH", path)
        .env("HOME", home.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether /bin/sh is a 64-bit program, which decides in addition to the machine's name.
fn has_64_bits() -> bool {
    fs::read("/bin/sh").unwrap()[4] == 2
}

#[test]
fn release_is_installed_and_replaced() {
    let home = Home::empty();
    for version in ["9.9.8", "9.9.9"] {
        for (_, target) in TARGETS {
            release(
                &home,
                target,
                &format!("#!/bin/sh\necho bantam {version}\n"),
            );
        }
        let machine = if has_64_bits() { "x86_64" } else { "armv7l" };
        let output = install(&home, machine);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{said}{}", text(&output.stderr));
        assert!(said.contains(&format!("installed bantam {version}")) && said.contains("PATH"));
        let installed = home.path(".local/bin/bantam");
        let run = Command::new(installed).arg("--version").output().unwrap();
        assert_eq!(text(&run.stdout), format!("bantam {version}\n"));
    }
    assert_eq!(fs::read_dir(home.path(".local/bin")).unwrap().count(), 1);
}

#[test]
fn broken_release_or_other_machine_installs_nothing() {
    let target = TARGETS[if has_64_bits() { 0 } else { 2 }];
    let starts = "#!/bin/sh\necho bantam 9.9.9\n";
    let refused = |home: &Home, machine: &str, word: &str| {
        let output = install(home, machine);
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{word}: {said}");
        has_all(&said, [word]);
        assert!(!home.path(".local").exists());
    };
    let home = Home::empty();
    refused(&home, target.0, "no folder");
    release(&home, target.1, starts);
    refused(&home, "mips", "no binary for mips");
    let archive = home.path(&format!("release/bantam-9.9.9-{}.tar.gz", target.1));
    let mut bytes = fs::read(&archive).unwrap();
    bytes.push(0);
    fs::write(&archive, bytes).unwrap();
    refused(&home, target.0, "is damaged");
    release(&home, target.1, "#!/bin/sh\nexit 1\n");
    refused(&home, target.0, "does not start");
    let other = Home::empty();
    release(&other, "riscv64gc-unknown-linux-musl", starts);
    refused(&other, target.0, "no archive for");
}

#[test]
fn package_has_the_program_its_unit_completions_and_manual() {
    const DEB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.github/deb");
    let home = Home::empty();
    let program = crate::program::program();
    let files = home.path("files");
    fs::create_dir_all(files.join("completions")).unwrap();
    fs::copy(program, files.join("bantam")).unwrap();
    let names = "completions/bantam.bash completions/_bantam completions/bantam.fish bantam.1 README.md \
        LICENSE THIRD-PARTY-LICENSES.txt CHANGELOG.md";
    for name in names.split_whitespace() {
        fs::write(files.join(name), format!("{name}\n")).unwrap();
    }
    let run = |name: &str, args: &[&str]| {
        let mut command = Command::new(name);
        command.args(args).env("BANTAM_HERE", program);
        let output = command.current_dir(home.path("")).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    run(DEB, &["files", "armhf", "packages"]);
    let package = format!("packages/bantam_{}_armhf.deb", env!("CARGO_PKG_VERSION"));
    let fields = run("dpkg-deb", &["--field", &package]);
    assert!(fields.contains("Architecture: armhf\n"), "{fields}");
    assert!(!fields.contains("Depends"), "{fields}");
    let listed = run("dpkg-deb", &["--contents", &package]);
    assert!(
        listed.lines().all(|line| line.contains(" root/root ")),
        "{listed}"
    );
    run("dpkg-deb", &["--extract", &package, "root"]);
    let files = "share/bash-completion/completions/bantam share/zsh/vendor-completions/_bantam \
        share/fish/vendor_completions.d/bantam.fish share/man/man1/bantam.1.gz \
        share/doc/bantam/copyright";
    for file in files.split_whitespace() {
        assert!(home.path("root/usr").join(file).exists(), "{file}");
    }
    let unit = home.path("root/usr/lib/systemd/user/bantam.service");
    let unit = fs::read_to_string(unit).unwrap();
    for line in [
        "ExecStart=/usr/bin/bantam gateway",
        "Environment=\"BANTAM_HOME=%h/.bantam\"",
        "WantedBy=default.target",
    ] {
        assert!(unit.lines().any(|l| l == line), "{line}: {unit}");
    }
    let installed = home.path("root/usr/bin/bantam");
    let version = run(installed.to_str().unwrap(), &["--version"]);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}
