//! Certificates of one TLS server: an authority of its own, the server, a client.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::spawn::must_be_installed;

/// What strict clients ask for: an authority that says it is one, and others that say they are not.
const EXTENSIONS: &str = "
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
";

/// The files, in the server's directory.
pub(super) struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    pub(super) fn make(folder: &Path) -> Self {
        must_be_installed(Path::new("openssl"));
        let certificates = Self { folder: folder.to_owned() };
        fs::write(folder.join("openssl.cnf"), EXTENSIONS).expect("openssl's configuration");
        certificates.sign("authority", &[]);
        for who in ["server", "client"] {
            certificates.sign(who, &["-CA", "authority.crt", "-CAkey", "authority.key"]);
        }
        certificates
    }

    pub(super) fn certificate(&self, who: &str) -> PathBuf {
        self.folder.join(format!("{who}.crt"))
    }

    pub(super) fn key(&self, who: &str) -> PathBuf {
        self.folder.join(format!("{who}.key"))
    }

    fn sign(&self, who: &str, by: &[&str]) {
        let made = Command::new("openssl")
            .current_dir(&self.folder)
            .args(["req", "-x509", "-config", "openssl.cnf", "-extensions", who, "-subj", &format!("/CN=tenure {who}")])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650"])
            .args(by)
            .arg("-keyout")
            .arg(self.key(who))
            .arg("-out")
            .arg(self.certificate(who))
            .output()
            .expect("cannot run openssl");
        assert!(made.status.success(), "openssl failed: {}", String::from_utf8_lossy(&made.stderr));
    }
}
