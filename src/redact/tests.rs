//! Redaction of realistic files, and of hostile texts.

use crate::computed::computed;

use super::*;

fn redact(text: &str) -> String {
    Redactor::default().redact(text.to_owned())
}

fn output(text: &str) -> String {
    Redactor::default().redact_output(text.to_owned(), "")
}

/// Realistic files. Text between « and » is removed; other text is unchanged.
const FILES: [(&str, &str); 40] = [
    (
        ".env",
        "DEBUG=0\nDB_HOST=db.example.org\nDB_PASSWORD=«hunter2»\nPORT=80\nMAX_TOKENS=4096\n",
    ),
    (
        ".env, quoted",
        "export DB_PASSWORD='«correct horse battery»'\nPASSPHRASE=\"«a \\\" b»\"\nNAME=\"Ann Lee\"\n",
    ),
    (
        ".env, references",
        "PASSWORD=${DB_PASSWORD:-}\nTOKEN=$(cat token.txt)\nA_SECRET=$B_SECRET\nMY_PASS=%PASS%\nPGPASS=<password>\n",
    ),
    (
        ".env, nothing",
        "DB_PASSWORD=\nSMTP_PASS=abc\nSECRET=false\nPASSWORD=********\nAPI_KEY=null\nSSO_SECRET=None\n",
    ),
    (
        ".env, paths",
        "SSL_KEY=/etc/ssl/server1.key\nPWD=/home/me1\nOLDPWD=/tmp/x1\nGOOGLE_APPLICATION_CREDENTIALS=./account-1.json\nPOSTGRES_PASSWORD_FILE=/run/secrets/db1\n",
    ),
    (
        ".env, web",
        "NEXT_PUBLIC_API_KEY=pk_live_0123456789abcdef\nSESSION_SECRET=«0f1e2d3c4b5a»\nTOKEN_TYPE=bearer12\nSORT_KEY=created\nSECRET_NAME=prod-1\nCSRF_TOKEN_LENGTH=32\n",
    ),
    (
        ".env, keys",
        "STRIPE_KEY=«zz9876543210abcdef»\nGITHUB_TOKEN=«1a2b3c4d5e»\nAPIKEY=«abcdefgh»\nSECRET_KEY_BASE=«0f1e2d3c»\nKEY=value MONKEY=banana\n",
    ),
    (
        ".env, base64",
        "AWS_SECRET_ACCESS_KEY=«wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY»\nA_SECRET=«/Zm9v+YmFy=»\n",
    ),
    (
        ".env of other letters",
        "日本 PASSWORD=«日本語日本語» x\nLE_MOT=été\n",
    ),
    (
        ".pgpass in a script",
        "DB_PASSWORD=«&hunter2secret9»\nPGPASS=«swordfish» psql -h db\nPGPASSWORD=«sword,f1sh» psql -U app\nSSHPASS=«sesame» ssh host\n",
    ),
    (
        "docker-compose.yml",
        "services:\n  db:\n    image: postgres:16\n    environment:\n      POSTGRES_USER: app\n      POSTGRES_PASSWORD: «letmein»\n      - MYSQL_ROOT_PASSWORD=«letmein»\n",
    ),
    (
        "docker inspect",
        "\"Env\": [\n  \"DB_PASSWORD=«hunter2»\",\n  \"PATH=/usr/bin\"\n],",
    ),
    (
        "docker run",
        "docker run -e DB_PASSWORD=«hunter2» -e DEBUG=1 --name db postgres:16",
    ),
    (
        "Dockerfile",
        "FROM alpine:3\nENV API_TOKEN=«1a2b3c4d5e»\nARG NPM_TOKEN\nRUN echo $API_TOKEN\n",
    ),
    (
        "kubernetes secret",
        "kind: Secret\nmetadata:\n  name: db-1\nstringData:\n  password: «hunter2»\n  username: app\n",
    ),
    (
        "kubernetes pod",
        "env:\n  - name: PASSWORD\n    valueFrom:\n      secretKeyRef:\n        name: db1\n        key: password\nimagePullSecrets:\n  - name: regcred\nsecretName: my-tls-2\n",
    ),
    (
        "ansible",
        "db_password: \"{{ vault_password }}\"\napi_token: \"«1a2b3c4d5e6f»\"\nbecome_password: «s3cr3t!x»\nuser: deploy\n",
    ),
    (
        "github workflow",
        "env:\n  NPM_TOKEN: ${{ secrets.NPM_TOKEN }}\n  password: ${{ secrets.PASSWORD }}\n  NODE_ENV: production\n",
    ),
    (
        "application.properties",
        "spring.datasource.username=app\nspring.datasource.password=«letmein»\nserver.port=8080\n",
    ),
    (
        "my.cnf",
        "[client]\nuser = root\npassword = «hunter2»\n# comment\nport = 3306\n",
    ),
    (
        ".aws/credentials",
        "[default]\naws_access_key_id = «AKIA0123456789ABCDEF»\naws_secret_access_key = «wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY»\nregion = eu-west-1\n",
    ),
    (
        ".npmrc",
        "registry=https://npm.example.org/\n//npm.example.org/:_authToken=«8c7b6a59-4838-2716»\n",
    ),
    (
        ".pypirc",
        "[pypi]\nusername = __token__\npassword = «pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDAtMDAwMC0wMDAwLTAwMDAwMDAwMDAwMAACKl»\n",
    ),
    (
        "config.json",
        "{\n  \"user\": \"app\",\n  \"password\": \"«12345»\",\n  \"clientSecret\": \"«super duper»\",\n  \"token\": null,\n  \"max_tokens\": 4096\n}\n",
    ),
    (
        "config.json in one line",
        "{\"password\":\"«letmein»\",\"access_token\":\"«1f2e3d4c5b6a»\",\"token_type\":\"bearer\",\"total_tokens\":123456789}",
    ),
    (
        "json in a string",
        "\"{\\\"password\\\": \\\"«letmein!»\\\", \\\"port\\\": \\\"8080\\\"}\" \"A=1\\nDB_PASSWORD=«hunter2»\"",
    ),
    (
        "pages of an API",
        "{\"items\": [], \"nextPageToken\": \"CAUQAA1234567\", \"next_token\": \"a1b2c3d4\"}",
    ),
    (
        "tokenizer_config.json",
        "{\"eos_token\": \"</s>\", \"bos_token\": \"<|begin_of_text|>\", \"model_max_length\": 8192}",
    ),
    (
        "settings.py",
        "DEBUG = True\nSECRET_KEY = \"«django-insecure-1a2b»\"\nPASSWORD = os.environ[\"DB_PASSWORD\"]\nAPI_KEY = None\nAUTH_PASSWORD_VALIDATORS = []\n",
    ),
    (
        "models.py",
        "class User(BaseModel):\n    name: str\n    password: str\n    secret: SecretStr\n    token: Optional[str] = None\n\n    password = getpass.getpass()\n    password = settings.db_password\n    password = db_password\n    self.password = password\n",
    ),
    (
        "login.py",
        "def login(user, password=None, token=\"\"):\n    token = next()\n    if password == \"hunter2\":\n        return login(user=user, password=password, token=tok2)\n",
    ),
    (
        "auth.rs",
        "const PASSWORD: &str = PLACE;\nlet token = self.peek()?;\npub password: Option<String>,\nsecret: [u8; 32],\nToken::Ident(name) => token::next(),\nmatch token { Some(t) => t, None => return }\n",
    ),
    (
        "auth.ts",
        "interface Login {\n  password: string;\n  token?: string\n}\nconst secret = await getSecret(name);\nconst config = {\n  password: process.env.PASSWORD,\n  token: env.TOKEN\n}\n",
    ),
    (
        "config.php",
        "$db['user'] = 'app';\n$db['password'] = '«hunter2»';\n$password = '«hunter2»';\n$hash = password_hash($password);\n",
    ),
    (
        "go test",
        "=== RUN   TestLogin1\n--- PASS: TestLogin1 (0.00s)\nPASS: suite-1.log\nok   example.org/login1 0.01s\n",
    ),
    (
        "messages.de.json",
        "{\n  \"password\": \"Password\",\n  \"login\": \"Anmelden\",\n  \"token\": \"Jeton\"\n}\n",
    ),
    (
        "README.md",
        "Set the password: see the wiki.\nPassword: must be at least 8 characters\nThe token: it expires in 2026.\n`password: <your password>`\nlogin with password: abc123x please\n",
    ),
    (
        "addresses",
        "DATABASE_URL=postgres://app:«s3cr3t»@db/x\ngit clone https://me:«hunter2»@git.example.org/x\nhttp://localhost:8080/x@y ssh://git@example.org:22/x\nredis://user:$PASS@localhost\n",
    ),
    (
        "grep",
        "config/app.yml:12:  password: «hunter2»\n.env:3:DB_PASSWORD=«hunter2»\nsrc/a.py:7:    password = settings.password\n",
    ),
    (
        "curl -v",
        "> GET /x HTTP/1.1\n> Authorization: «Bearer abc.def/g+h.1234567==»\n> Accept: */*\n< set-cookie: theme=dark1\n{\"secret\": \"«s1s2»\"}\n",
    ),
];

#[test]
fn files_lose_their_secrets_and_nothing_else() {
    let mut wrong = Vec::new();
    for (name, file) in FILES {
        let mut parts = file.split('«');
        let mut expected = parts.next().unwrap().to_owned();
        for part in parts {
            expected += REMOVED;
            expected += part.split_once('»').unwrap().1;
        }
        let shown = output(&file.replace(['«', '»'], ""));
        if shown != expected {
            wrong.push(format!("{name}:\n{shown}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_value_of_any_length_and_of_any_letters_is_removed() {
    for len in [3000, 4093, 4097, 100_000] {
        for letters in ["k7", "é7"] {
            let value = letters.repeat(len / 2);
            for text in [
                format!("DB_PASSWORD={value} and more"),
                format!("{{\"password\": \"{value}\"}} and more"),
            ] {
                let shown = output(&text);
                assert!(!shown.contains(&letters.repeat(2)), "{len} {letters}");
                assert!(shown.ends_with(" and more"), "{len} {letters}");
            }
        }
    }
}

#[test]
fn a_megabyte_of_names_takes_under_a_second() {
    // A debug build takes ten times as long, so it reads a fourth.
    let (length, limit) = (1 << 18, 250);
    for pair in [
        "NAME=",
        "PASSWORD=",
        "A_KEY=/a",
        "TOKEN:/",
        "SECRET=$",
        "password=",
        "password:",
        "password='",
        "password: \"a ",
        "password = a\n",
        "x\\\"token\\\":",
        "pass=é",
        "A_TOKEN=1 ",
        "NAME=value\n",
        "://a:b1@",
        "eyJ.",
        "SG.",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----( ",
        "AAAA\n-----END PRIVATE KEY-----",
        "Bearer a/",
    ] {
        let text = pair.repeat(length / pair.len());
        let before = computed();
        drop(output(&(text + " x")));
        let took = computed() - before;
        assert!(took < limit, "{pair:?}: {took}0 ms");
    }
}

#[test]
fn configured_secrets_and_key_shapes_are_removed_and_prose_is_not() {
    let redactor: Redactor = [Secret::new("hunter2hunter2"), Secret::new("short")]
        .into_iter()
        .collect();
    let redact = |text: &str| redactor.redact(text.to_owned());
    assert_eq!(
        redact("a hunter2hunter2 b short"),
        format!("a {REMOVED} b short")
    );
    redactor.clone().learn(Secret::new("hunter2hunter2hunter3"));
    assert_eq!(redact("hunter2hunter2hunter3"), REMOVED);
    assert_eq!(
        redact("KEY=sk-proj-0123456789abcdefghij."),
        format!("KEY={REMOVED}.")
    );
    let token = format!("1234567890:{}", "AAx".repeat(11) + "bc");
    assert_eq!(
        redact(&format!("日本 {token}!")),
        format!("日本 {REMOVED}!")
    );
    for plain in [
        "risk-0123456789abcdefghijklm",
        "sk-learn-is-a-python-library",
        "12:34:56",
        "2026:11",
    ] {
        assert_eq!(redact(plain), plain);
    }
}

#[test]
fn known_key_formats_are_redacted() {
    let long = "a1".repeat(32);
    for key in [
        format!("npm_{}", &long[..36]),
        format!("pypi-{long}"),
        format!("dckr_pat_{}", &long[..27]),
        format!("shpat_{}", &long[..32]),
        format!("AGE-SECRET-KEY-1{}", long.to_uppercase()),
        format!("ghp_{}", &long[..36]),
        "AKIA0123456789ABCDEF".to_owned(),
        format!("xoxa-2-{}", &long[..20]),
        format!("xoxs-{}", &long[..20]),
        format!("tvly-dev-{}", &long[..32]),
        format!("SG.{}.{}", &long[..22], &long[..43]),
    ] {
        assert_eq!(
            redact(&format!("x={key};")),
            format!("x={REMOVED};"),
            "{key}"
        );
    }
    let header = redact("GET / HTTP/1.1\nAuthorization: Bearer abc.def/g+h.1234567==\nAccept: */*");
    assert_eq!(
        header,
        format!("GET / HTTP/1.1\nAuthorization: {REMOVED}\nAccept: */*")
    );
    for kind in ["", "RSA ", "OPENSSH ", "ENCRYPTED "] {
        let block = format!(
            "-----BEGIN {kind}PRIVATE KEY-----\nMIIE\nvQ==\n-----END {kind}PRIVATE KEY-----"
        );
        assert_eq!(
            redact(&format!("key:\n{block}\nend")),
            format!("key:\n{REMOVED}\nend")
        );
        assert_eq!(redact(&block[..40]), REMOVED, "cut off");
        let (_, last) = block.split_once('\n').unwrap();
        let end = format!("-----END {kind}PRIVATE KEY-----");
        assert_eq!(redact(last), format!("{REMOVED}{end}"), "the last lines");
    }
    for plain in [
        "password=hunter2hunter2",
        "npm_config_registry_2",
        "SG.1 and SG.2.",
        "pypi-server-1.0-py3-none-any",
        "-H 'Authorization: Bearer $OPENAI_API_KEY'",
        "-----BEGIN CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----",
        "START = \"-----BEGIN RSA PRIVATE KEY-----\"\nEND = \"-----END RSA PRIVATE KEY-----\"\ndef f():",
        "if text.startswith(b\"-----BEGIN OPENSSH PRIVATE KEY-----\"):\n    return load(text)",
        "-----END PRIVATE KEY-----",
    ] {
        assert_eq!(redact(plain), plain);
    }
}

#[test]
fn words_of_the_user_are_shown_and_levels_remove_less() {
    let text = "DB_PASSWORD=hunter2 KEY=sk-proj-0123456789abcdefghij";
    let said = "Use hunter2 as the password.";
    let redactor: Redactor = [Secret::new("mine-all-mine")].into_iter().collect();
    let shown_at = |level, said| {
        let mut redactor = redactor.clone();
        redactor.level = level;
        redactor.redact_output(text.to_owned(), said)
    };
    assert_eq!(
        shown_at(Redact::Secrets, ""),
        format!("DB_PASSWORD={REMOVED} KEY={REMOVED}")
    );
    let shown = format!("DB_PASSWORD=hunter2 KEY={REMOVED}");
    assert_eq!(shown_at(Redact::Secrets, said), shown);
    assert_eq!(shown_at(Redact::Keys, ""), shown);
    assert_eq!(shown_at(Redact::Off, ""), text);
    let mut redactor = redactor.clone();
    redactor.level = Redact::Off;
    let own = redactor.redact_output("mine-all-mine".to_owned(), "mine-all-mine");
    assert_eq!(own, REMOVED, "bantam's own keys are never shown");
}

#[test]
fn names_of_settings_and_arguments_tell_secrets() {
    for name in [
        "key",
        "--api-key",
        "apiKey",
        "X-Subscription-Token",
        "access_token",
        "clientSecret",
        "PASSWORD2",
        "PGPASSWORD",
        "SMTP_PASS",
    ] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in [
        "keyboard",
        "--model",
        "public-key",
        "token_limit",
        "secret-name",
        "tokens",
        "id",
        "BYPASS",
        "COMPASS_HEADING",
        "OLDPWD",
    ] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn a_key_is_removed_before_the_text_is_cut() {
    let redactor: Redactor = [Secret::new("hunter2hunter2hunter2")].into_iter().collect();
    let shown = redactor.foreign("the key\nhunter2hunter2hunter2 is wrong", 20);
    assert_eq!(shown, "the key [secret rem…");
}
