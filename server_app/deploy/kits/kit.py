"""A start kit: the folder that makes a machine the SuperLink, a node or a submitter's, read and checked.

``bouquet provision`` writes kits. Every process of a machine writes only below its kit.
"""

import hashlib
import hmac
import math
import os
import stat
import sys
import tomllib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from server_app.deploy.kits.parsing import check_name, is_private, read_address, read_size, read_table
from task.encryption.ckks import KEY_FILE
from task.errors import ConfigError, choose_from
from task.flower import app as flower
from task.references import CODE, is_hub

CONFIG = "kit.toml"
SECRET_BYTES = 48
LEAST_SECRET_BYTES = 32
MAX_REPLY = "64M"
MAX_RATE = 1200  # rounds of a quarter of a second with a few messages each stay below it
MAX_RUNS = 4  # a ServerApp takes some 175 MB (MNIST, 2nn), so a link of 2 GB has room for them
FILES = 65536  # file descriptors of the SuperLink: each connection needs one
# One local step at the default batch-size is just allowed, so that no recipe is refused; updates of one or a
# few examples, which are easiest to reconstruct, are not.
MIN_EXAMPLES = 10
LARGEST = 2 * 1024**3 - 1  # bytes of a gRPC message, a signed 32-bit number
APPS = ("installed", "any")
PROOF_OF = b"bouquet: Control API"  # for a link's own calls
SUBMITTER = b"bouquet-submitter"  # the kind of key in the file of a submitter
TOKEN_OF = b"bouquet: submitted runs"  # for the calls of people: Flower's own commands, `bouquet run --link`
OWNER = "link"  # who submits with the link's own kit; no node or submitter has this name


class In:
    """A file or folder of a kit: the attribute's value is its path."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __get__(self, kit: "Kit", owner: "type[Kit]") -> Path:
        return kit.path / self.place


@dataclass(frozen=True)
class Kit:
    """What the kits of the SuperLink and of a node have in common."""

    path: Path  # its folder, absolute

    flwr_home = In("flwr")  # FLWR_HOME of its processes
    logs = In("logs")  # folder of the processes' logs
    state = In("state")  # folder of what must survive a restart
    cache = In("cache")  # BOUQUET_CACHE of its processes: decoded data and the clients' state
    code = In("code")  # folder of modules that runs may name, see `task.references`
    ca_certificate = In("ca.crt")  # certificate of the authority that signs the SuperLink's

    def environment(self) -> dict[str, str]:
        """Return what is added to the environment of its processes."""
        return {
            **flower.environment(self.flwr_home),
            "BOUQUET_CACHE": str(self.cache),
            CODE: str(self.code),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
        }


@dataclass(frozen=True)
class LinkKit(Kit):
    """The kit of the SuperLink."""

    fleet: str  # HOST:PORT that the Fleet API listens on, the one that faces the network
    control: str  # HOST:PORT that the Control and Runtime APIs listen on: loopback or a private network
    address: str  # HOST:PORT by which nodes reach the Fleet API
    max_reply: int  # largest reply of a node, bytes
    max_rate: int  # messages that a node may send in a minute
    fleet_http: str = ""  # HOST:PORT that the Fleet API listens on over HTTP; "" = it does not
    submit: str = ""  # HOST:PORT that Flower's own commands and submitters come to; "" = none
    max_runs: int = MAX_RUNS  # jobs that run at once

    # The secret, raw bytes, that the SuperExec of ServerApps proves itself with, and callers of the Control
    # API; see `proof`.
    secret = In("superexec.secret")
    server_certificate = In("server.crt")
    server_key = In("server.key")
    database = In("state/link.db")  # database of the SuperLink
    status = In("state/status.json")  # the link's last status
    runs = In("runs")  # folder of result folders
    jobs = In("jobs")  # folder of submitted jobs
    nodes = In("nodes")  # folder of the nodes' public keys, ``NAME.pub``
    submitters = In("submitters")  # folder of what submitters' tokens are checked with, ``NAME.pub``
    # Folder of revoked public keys: ``NAME.pub``, ``NAME~2.pub`` for a second one of that name.
    revoked = In("revoked")

    @property
    def node_keys(self) -> dict[str, Path]:
        """Public key files of the nodes that may join, by name; read at every access."""
        return self._valid(self.nodes)

    @property
    def submitter_keys(self) -> dict[str, Path]:
        """The same of the submitters."""
        return self._valid(self.submitters)

    def _valid(self, folder: Path) -> dict[str, Path]:
        """Return the public key files of a folder by name.

        A key that also lies in ``revoked`` is left out: a newer kit that is copied over an older one leaves
        the older one's files in place, and must not bring a revoked key back.
        """
        gone = {_key_bytes(path) for path in self.revoked_keys}
        return {p.stem: p for p in sorted(folder.glob("[!.]*.pub")) if _key_bytes(p) not in gone}

    @property
    def token(self) -> str:
        """What its owner's commands show at `submit`."""
        return proof(self.secret.read_bytes(), TOKEN_OF)

    @property
    def revoked_keys(self) -> tuple[Path, ...]:
        """Files of revoked public keys; the key itself counts, since its name may have got a new one."""
        return tuple(sorted(self.revoked.glob("[!.]*.pub")))

    @property
    def revoked_nodes(self) -> tuple[Path, ...]:
        """Those of them that were nodes'."""
        return tuple(path for path in self.revoked_keys if not _key_bytes(path).startswith(SUBMITTER))


@dataclass(frozen=True)
class Policy:
    """What a node takes part in, as its site decides."""

    # "installed" runs only an app equal to the installed one; "any" runs what the SuperLink sends.
    apps: str = "installed"
    max_rounds: int = 0  # largest number of training messages that are answered in a run; 0 = no limit
    # Fewest distinct training examples that an update is computed from; 0 = no limit.
    min_examples: int = MIN_EXAMPLES
    # Fewest local steps of an update, unless each uses all examples; 0 = no limit.
    min_steps: int = 0
    run_paths: bool = False  # whether a run may name files and folders of this machine
    # Packages and modules, installed or in the kit's folder `code`, that a run may name, package.module:name.
    packages: tuple[str, ...] = ()
    secagg: bool = False  # whether it takes part in runs with secure aggregation only
    he: bool = False  # whether it takes part in runs with homomorphic encryption only
    # Largest epsilon that sums with this node's noise may cost, of all runs together; 0 = no limit.
    max_epsilon: float = 0.0
    delta: float = 1e-5  # delta of that epsilon
    keep_models: bool = False  # whether the newest global model of each run is kept in the kit
    names: bool = (
        False  # whether names of columns, categories and classes go to the server and the model's file
    )
    own_model: bool = False  # whether the site's own model goes to the link and the other sites
    max_questions: int = 0  # most questions for exact sums that are answered, of all runs; 0 = no limit
    missing_counts: bool = False  # whether counts of fewer missing values than min_examples may leave
    pooled_counts: bool = False  # whether counts of few persons may leave in masked sums of enough


@dataclass(frozen=True)
class NodeKit(Kit):
    """The kit of a node."""

    name: str
    link: str  # HOST:PORT of the SuperLink's Fleet API
    policy: Policy = field(default_factory=Policy)  # what the node takes part in

    key = In("node.key")
    public_key = In("node.pub")
    # Certificate of the public key by the authority, for secure aggregation; older kits have none.
    certificate = In("node.crt")
    # Key that nodes encrypt with, secret; kits of `bouquet provision --he` have it.
    he_key = In(KEY_FILE)
    lock = In("state/node.lock")  # held by the node's process, whose id is in it
    models = In("models")  # folder of kept global models, ``RUN.safetensors``; see `task.resolve.kept_model`
    alive = In("state/alive")  # file that is touched after each exchange with the SuperLink; docker/health.py


@dataclass(frozen=True)
class SubmitterKit(Kit):
    """The kit of a person who submits runs to a link, from another account or machine."""

    name: str
    link: str  # HOST:PORT of the link's `LinkKit.submit`

    secret = In("submitter.secret")
    runs = In("runs")  # folder of the results that were fetched

    @property
    def token(self) -> str:
        """What its commands show at the link."""
        return proof(self.secret.read_bytes(), TOKEN_OF)

    @property
    def public(self) -> bytes:
        """What the link checks the token with, a line as that of a public key: it does not reveal it."""
        return b" ".join([SUBMITTER, b64encode(digest_of(self.token)), f"{self.name}\n".encode()])


K = TypeVar("K", LinkKit, NodeKit)


def proof(secret: bytes, of: bytes = PROOF_OF) -> str:
    """Return the proof of a secret that a caller shows; it does not reveal the secret."""
    return hmac.new(secret, of, hashlib.sha256).hexdigest()


def digest_of(token: str) -> bytes:
    """Return what a token is checked with."""
    return hashlib.sha256(token.encode("ascii")).digest()


def read_kit(path: str | Path) -> LinkKit | NodeKit | SubmitterKit:
    """Read a kit and check that all of it is there.

    Raises:
        ConfigError: The folder, a file or a key is missing, unknown or unusable, or a private file is open
            to others.
    """
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: expected the folder of a start kit; got {'a file' if folder.exists() else 'none'}. "
            "`bouquet provision` makes kits"
        )
    config = folder / CONFIG
    table = _read_toml(config)
    kind = table.get("kind")
    if kind == "link":
        kit: LinkKit | NodeKit | SubmitterKit = _link_kit(folder, config, table)
        public, private = ["ca.crt", "server.crt"], ["server.key", "superexec.secret"]
        if not (folder / "nodes").is_dir():
            raise _missing(folder / "nodes", "the folder of the nodes' public keys")
    elif kind == "node":
        kit = _node_kit(folder, config, table)
        public, private = ["ca.crt", "node.pub"], ["node.key"]
    elif kind == "submitter":
        kit = _submitter_kit(folder, config, table)
        public, private = ["ca.crt"], ["submitter.secret"]
    else:
        raise ConfigError(f'{config}: key "kind": expected "link", "node" or "submitter"; got {kind!r}')
    if (folder / KEY_FILE).exists():
        if kind == "link":
            raise ConfigError(
                f"{folder / KEY_FILE}: expected no encryption key of the nodes in the link's kit, "
                "which must not be able to decrypt the sums; got one. Remove it, and give the nodes "
                "a new one: "
                "bouquet provision --out DIR --rotate-he"
            )
        private.append(KEY_FILE)
    for name in (*public, *private):
        _check_file(folder / name, private=name in private)
    if not isinstance(kit, NodeKit) and (size := kit.secret.stat().st_size) < LEAST_SECRET_BYTES:
        cure = (
            f"Make a new one: head -c {SECRET_BYTES} /dev/urandom > {kit.secret}"
            if isinstance(kit, LinkKit)
            else "Copy the whole folder that `bouquet provision` made"
        )
        raise ConfigError(
            f"{kit.secret}: expected at least {LEAST_SECRET_BYTES} random bytes; got {size}. {cure}"
        )
    return kit


def read_link_kit(path: str | Path) -> LinkKit:
    """Read the kit of a SuperLink.

    Raises:
        ConfigError: It is none, or it cannot be used.
    """
    return _of_kind(path, "a SuperLink", LinkKit)


def read_node_kit(path: str | Path) -> NodeKit:
    """Read the kit of a node.

    Raises:
        ConfigError: It is none, or it cannot be used.
    """
    return _of_kind(path, "a node", NodeKit)


def read_submitting_kit(path: str | Path) -> LinkKit | SubmitterKit:
    """Read a kit that runs are submitted with.

    Raises:
        ConfigError: It is none, or it cannot be used.
    """
    kit = read_kit(path)
    if isinstance(kit, NodeKit):
        raise ConfigError(f"{kit.path}: expected the kit of a link or a submitter; got that of {_owner(kit)}")
    return kit


def _of_kind(path: str | Path, whose: str, kind: type[K]) -> K:
    kit = read_kit(path)
    if not isinstance(kit, kind):
        raise ConfigError(f"{kit.path}: expected the kit of {whose}; got that of {_owner(kit)}")
    return kit


def _owner(kit: LinkKit | NodeKit | SubmitterKit) -> str:
    if isinstance(kit, LinkKit):
        return f"the SuperLink {kit.address}"
    return f"the {'node' if isinstance(kit, NodeKit) else 'submitter'} {kit.name!r}"


def _read_toml(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _missing(config, "the configuration of a start kit") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"{config}: expected a TOML file; got one with an error: {err}") from None
    except OSError as err:
        raise ConfigError(f"{config}: expected a readable file; got {err.strerror}") from None


def _link_kit(folder: Path, config: Path, table: Mapping[str, Any]) -> LinkKit:
    key = f'{config}: key "{{}}"'.format
    texts = dict.fromkeys(("kind", "fleet", "control", "address", "max-reply", "fleet-http", "submit"), "")
    numbers = {"max-rate": MAX_RATE, "max-runs": MAX_RUNS}
    optional = {"max-reply": MAX_REPLY, "fleet-http": "", "submit": ""} | numbers
    values = read_table(config, table, texts | numbers, optional)
    fleet, control, address = (values[k] for k in ("fleet", "control", "address"))
    for name in ("fleet", "control", "address"):
        read_address(values[name], key(name))
    taken = {read_address(address, "")[1] for address in (fleet, control)}
    for name in filter(values.get, ("fleet-http", "submit")):
        _, port = read_address(values[name], key(name))
        if port in taken:
            raise ConfigError(f"{key(name)}: expected a port that no other key names; got {values[name]!r}")
        taken.add(port)
    if not is_private(read_address(control, "")[0]):
        raise ConfigError(
            f"{key('control')}: expected an address of loopback or of a private network, since only this "
            f'machine\'s own processes use it; got {control!r}. The usual value is "127.0.0.1:8000"'
        )
    size = read_size(values["max-reply"], key("max-reply"))
    if size > LARGEST:
        raise ConfigError(
            f"{key('max-reply')}: expected less than 2G, the limit of gRPC; got {values['max-reply']!r}"
        )
    for name in numbers:
        if values[name] < 1:
            raise ConfigError(f"{key(name)}: expected at least 1; got {values[name]}")
    return LinkKit(
        folder, fleet, control, address, size, values["max-rate"], values["fleet-http"], values["submit"],
        values["max-runs"],
    )  # fmt: skip


def _submitter_kit(folder: Path, config: Path, table: Mapping[str, Any]) -> SubmitterKit:
    values = read_table(config, table, {"kind": "", "name": "", "link": ""}, {})
    check_name(values["name"], f'{config}: key "name"')
    read_address(values["link"], f'{config}: key "link"')
    return SubmitterKit(folder, values["name"], values["link"])


def _node_kit(folder: Path, config: Path, table: Mapping[str, Any]) -> NodeKit:
    key = f'{config}: key "{{}}"'.format
    values = read_table(config, table, {"kind": "", "name": "", "link": "", "policy": {}}, {"policy": {}})
    check_name(values["name"], key("name"))
    read_address(values["link"], key("link"))
    defaults = {name.replace("_", "-"): value for name, value in asdict(Policy()).items()} | {"packages": []}
    policy = read_table(config, values["policy"], defaults, defaults, "policy.")
    if policy["apps"] not in APPS:
        raise ConfigError(choose_from(key("policy.apps"), policy["apps"], APPS))
    for name in ("max-rounds", "min-examples", "min-steps", "max-questions"):
        if policy[name] < 0:
            raise ConfigError(f"{key('policy.' + name)}: expected 0 (no limit) or more; got {policy[name]}")
    if not 0 <= policy["max-epsilon"] < math.inf:
        raise ConfigError(
            f"{key('policy.max-epsilon')}: expected 0 (no limit) or more; got {policy['max-epsilon']}"
        )
    if not 0 < policy["delta"] < 1:
        raise ConfigError(
            f"{key('policy.delta')}: expected more than 0 and less than 1; got {policy['delta']}"
        )
    wrong = [p for p in policy["packages"] if not (isinstance(p, str) and (p.isidentifier() or is_hub(p)))]
    if wrong:
        raise ConfigError(
            f'{key("policy.packages")}: expected data sets "hf:OWNER/NAME", or names of packages or '
            f'modules, such as ["net", "data"]; got {wrong[0]!r}'
        )
    policy["packages"] = tuple(policy["packages"])
    allowed = Policy(**{name.replace("-", "_"): value for name, value in policy.items()})
    return NodeKit(folder, values["name"], values["link"], allowed)


def _check_file(path: Path, *, private: bool) -> None:
    if not path.is_file():
        raise _missing(path, "a file of the kit")
    mode = stat.S_IMODE(path.stat().st_mode)
    if private and mode not in (0o600, 0o400):
        raise ConfigError(
            f"{path}: expected mode 0600, as it is secret; got {mode:04o}. Correct it: chmod 600 {path}"
        )
    if not os.access(path, os.R_OK):
        raise ConfigError(
            f"{path}: expected a file that this user (uid {os.getuid()}) can read; got one it cannot"
        )


def _missing(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path}: expected {what}; got none. Copy the whole folder that `bouquet provision` made"
    )


def _key_bytes(path: Path) -> bytes:
    """Return the key of a public key file, without the comment behind it."""
    return b" ".join(path.read_bytes().split()[:2])
