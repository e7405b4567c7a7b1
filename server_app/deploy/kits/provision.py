"""Make the start kits of a federation, add and revoke nodes and submitters, renew the link's certificate.

The folder stays with its maker; its kits go to the machines::

    OUT/provision.json   a record: the address, fingerprints, nodes and submitters with their dates
    OUT/he/              the key that nodes encrypt with; each node's kit has a copy
    OUT/ca/              the authority, which only signs the SuperLink's certificate
    OUT/link/            kit of the SuperLink, with the public keys of the nodes and submitters
    OUT/NAME/            kit of a node or a submitter
    OUT/revoked/         kits of revoked nodes and submitters

No key is ever overwritten. A kit is built in a temporary folder and renamed; a revocation counts once it is
in ``provision.json``. So the next command finishes what a killed one left.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from server_app.deploy.kits import certificates, templates
from server_app.deploy.kits.kit import (
    CONFIG,
    LinkKit,
    NodeKit,
    SubmitterKit,
    read_kit,
    read_link_kit,
    read_node_kit,
)
from server_app.deploy.kits.kitfiles import locked, publish, set_key, uncomment
from server_app.deploy.kits.make_kits import build_authority, build_link, build_node, build_submitter, sign
from server_app.deploy.kits.parsing import check_name, read_address
from server_app.deploy.kits.provision_report import Line, Provisioned
from server_app.deploy.kits.provision_state import ProvisionState, read_state
from task.encryption.ckks import KEY_FILE, PUBLIC_FILE, id_of, new_key, public_of
from task.errors import BouquetError, ConfigError, choose_from
from task.storage.files import make_folder, sync_folder, write_bytes, write_text

DAYS = 365


def provision(
    out: str | Path,
    link: str = "",
    nodes: Sequence[str] = (),
    revoke: Sequence[str] = (),
    days: int = DAYS,
    renew: bool = False,
    *,
    he: bool = False,
    rotate_he: bool = False,
    submitters: Sequence[str] = (),
) -> Provisioned:
    """Add what is missing to a folder of kits, and keep the rest.

    Args:
        out: The folder.
        link: HOST:PORT by which nodes reach the SuperLink; "" = as before. A new address is written into the
            kits that are still here, and a new HOST gets a new certificate.
        nodes: Names of nodes that must exist. A revoked one gets a new key.
        revoke: Names of nodes and submitters whose keys become invalid.
        days: For how long a new certificate of the SuperLink is valid.
        renew: Make a new certificate of the SuperLink, for the same key.
        he: Make a key that nodes encrypt with (run-config key ``he``), unless there is one.
        rotate_he: Make a new one. A node's revocation does so, too, as that node knows the old one.
        submitters: Names of submitters that must exist. A revoked one gets a new secret.

    Raises:
        ConfigError: A name, the address or the number of days is invalid, or the folder lacks what an earlier
            call made.
        BouquetError: A file could not be written.
    """
    names, gone, people = (list(dict.fromkeys(given)) for given in (nodes, revoke, submitters))
    for name in (*names, *gone):
        check_name(name)
    for name in people:
        check_name(name, "name of a submitter")
    if both := sorted({*names, *people} & {*gone}):
        option = "--node" if both[0] in names else "--submitter"
        raise ConfigError(
            f"{option} and --revoke: expected different names; got {both[0]!r} in both. For a new key, "
            "revoke it first and add it with a second command"
        )
    if not 1 <= days <= certificates.AUTHORITY_DAYS:
        raise ConfigError(f"--days: expected 1 to {certificates.AUTHORITY_DAYS}; got {days}")
    if link:
        read_address(link, "--address")
    folder = Path(out).expanduser().resolve()
    read_state(folder, link)  # refuses before anything is made
    try:
        with locked(folder):
            return _Folder(folder, read_state(folder, link), days).bring(
                link, names, people, gone, renew, he, rotate_he
            )
    except OSError as err:
        raise BouquetError(
            f"{err.filename or folder}: could not be written: {err.strerror}. No kit is half made: "
            "fix this and run the same command again"
        ) from err


class _Folder:
    """The folder of all kits, locked."""

    def __init__(self, out: Path, record: ProvisionState, days: int) -> None:
        self.out = out
        self.record = record
        self.days = days
        self.lines: list[Line] = []
        self.remarks: list[str] = []

    def bring(
        self,
        link: str,
        names: Sequence[str],
        people: Sequence[str],
        gone: Sequence[str],
        renew: bool,
        he: bool,
        rotate: bool,
    ) -> Provisioned:
        self._check(names, people, gone)
        if not (self.out / "link").exists():
            self._make_link()
        else:
            self._keep_link(link or self.record.link, renew)
        self.record.save()
        for name in gone:
            entry = self.record.members[name]
            if entry["revoked"]:
                self.remarks.append(f"{name} was revoked on {entry['revoked']}")
            else:
                entry["revoked"] = certificates.now().isoformat()
                self.record.save()
                self.lines.append(self._line(name, "revoked"))
                rotate = rotate or (name in self.record.nodes and (self.out / "he" / KEY_FILE).exists())
        self._settle_revoked()
        for name in names:
            self._add(name, self.record.nodes)
        if people:
            self._open_submit()
        for name in people:
            self._add(name, self.record.submitters)
        self._certify()
        if he or rotate or (self.out / "he" / KEY_FILE).exists():
            self._share_key(rotate)
        listed = {line.name for line in self.lines}
        self.lines += [
            self._line(n, "kept")
            for n in self.record.members
            if n not in listed and not self.record.revoked(n)
        ]
        self.remarks += [finding.text for finding in certificates.kit_findings(self.out / "link")]
        line = Line("link", self.done, self._until("link/server.crt"), tuple(sorted(self.changed)), "link")
        return Provisioned(self.out, self.record.link, (line, *self.lines), tuple(self.remarks))

    def _check(self, names: Sequence[str], people: Sequence[str], gone: Sequence[str]) -> None:
        members = self.record.members
        for name in gone:
            if name not in members:
                raise ConfigError(choose_from("--revoke: unknown node or submitter", name, members))
        if both := sorted({*names, *self.record.nodes} & {*people, *self.record.submitters}):
            raise ConfigError(f"--submitter: expected a name that no node has; got {both[0]!r} for both")
        known = {n.lower(): n for n in (*names, *people, *members)}
        for name in (*names, *people, *members):
            if (other := known[name.lower()]) != name:
                option = "--submitter" if name in people else "--node"
                raise ConfigError(
                    f"{option}: expected names that differ by more than capitals; got {name!r} and {other!r}"
                )

    # The SuperLink

    def _make_link(self) -> None:
        authority = self.out / "ca"
        done = "kept" if authority.exists() else "new"
        if not authority.exists():
            build_authority(authority, self.days)
        self.lines.append(Line("ca", done, self._until("ca/ca.crt")))
        build_link(self.out / "link", authority, self.record.link, self.days)
        self.done, self.changed = "new", {"."}

    def _keep_link(self, link: str, renew: bool) -> None:
        kit = self._kit()
        self.done, self.changed = "kept", set[str]()
        if (self.out / "ca").exists():
            self.lines.append(Line("ca", "kept", self._until("ca/ca.crt")))
        moved = link != self.record.link
        new_host = read_address(link, "--address")[0] != read_address(self.record.link, "link")[0]
        if moved:
            port = link.rsplit(":", 1)[1]
            if port == kit.control.rsplit(":", 1)[1]:
                raise ConfigError(
                    f"--address: expected another port than {kit.control}, the Control API's; got {port}. "
                    f'Choose another, or change the key "control" in {kit.path / CONFIG}'
                )
        if renew or new_host:
            key = kit.server_key.read_bytes()
            certificate = sign(self.out / "ca", kit.ca_certificate, key, link, self.days)
            write_bytes(kit.server_certificate, certificate)
            self.done = "certificate renewed"
            self.changed.add("server.crt")
        if moved:
            self._move(kit, link)
            self.done = f"address changed from {self.record.link}" + (", new certificate" if new_host else "")
            self.changed |= {CONFIG, "README.txt"}
            self.record.link = link

    def _move(self, kit: LinkKit, link: str) -> None:
        """Write a new address into the kits that are here, and keep what else was edited in their files."""
        for name, entry in self.record.members.items():
            folder, address = self.out / name, self._address(link, node=name in self.record.nodes)
            if not entry["revoked"] and folder.exists():
                self._point(folder, address)
                self.lines.append(self._line(name, "address changed", CONFIG, "README.txt"))
            elif not entry["revoked"]:
                self.lines.append(self._line(name, "kept"))
                self.remarks.append(f'{name}: its kit is not here; set link = "{address}" in its {CONFIG}')
        interface, listens = kit.fleet.rsplit(":", 1)
        if listens == self.record.link.rsplit(":", 1)[1]:  # else a router forwards another port
            set_key(kit.path / CONFIG, "fleet", f"{interface}:{link.rsplit(':', 1)[1]}")
        set_key(kit.path / CONFIG, "address", link)
        write_text(kit.path / "README.txt", templates.link_texts(link)["README.txt"])

    def _open_submit(self) -> None:
        """Let submitters come to the link: turn the key ``submit`` of its kit on."""
        config = self._kit().path / CONFIG
        if not self._kit().submit:
            uncomment(config, "submit")
        if not (submit := self._kit().submit):
            raise ConfigError(
                f'{config}: key "submit": expected HOST:PORT that submitters come to, such as '
                f'"0.0.0.0:{templates.SUBMIT_PORT}"; got none. Add the line and run the same command again'
            )
        if "." not in self.changed:  # the site may have edited its own file, so it is not copied
            self.remarks.append(
                f'link: set submit = "{submit}" in its {CONFIG} and restart it, unless it is there; '
                "submitters come to that port"
            )

    # The nodes and submitters

    def _address(self, link: str, *, node: bool) -> str:
        """Return where nodes or submitters reach the link, whose Fleet API has the address `link`."""
        if node:
            return link
        port = self._kit().submit.rpartition(":")[2] or templates.SUBMIT_PORT
        return f"{link.rpartition(':')[0]}:{port}"

    def _add(self, name: str, group: dict[str, dict[str, Any]]) -> None:
        entry = group.get(name)
        if entry and not entry["revoked"]:
            return
        kit, folder, nodes = self._kit(), self.out / name, group is self.record.nodes
        home, build = (kit.nodes, build_node) if nodes else (kit.submitters, build_submitter)
        listed = home / f"{name}.pub"
        address = self._address(self.record.link, node=nodes)
        if listed.exists() and not (folder.exists() and listed.read_bytes() == self._complete(folder)):
            raise ConfigError(f"{listed}: expected no key of {name}; got one made elsewhere. Move it away")
        if not folder.exists():
            build(folder, address, kit.ca_certificate.read_bytes())
        public = self._complete(folder)
        fingerprint = certificates.node_fingerprint(public)
        earlier = [] if entry is None else [*entry["earlier"], {k: entry[k] for k in entry if k != "earlier"}]
        if fingerprint in {old["fingerprint"] for old in earlier}:
            raise ConfigError(
                f"{folder}: expected no folder, before making a new kit; got one with the revoked key "
                f"{fingerprint}. Move it away"
            )
        if self._member(folder).link != address:  # a killed command made it
            self._point(folder, address)
        make_folder(home)  # older kits have no folder of submitters
        publish(listed, public)
        group[name] = {
            "fingerprint": fingerprint,
            "created": certificates.now().isoformat(),
            "revoked": None,
            "earlier": earlier,
        }
        self.record.save()
        if earlier:
            self.remarks.append(f"{name} was revoked on {earlier[-1]['revoked']}; only its new key is valid")
        self.lines.append(self._line(name, "new key" if earlier else "new", "."))
        self.changed.add(home.name)

    def _certify(self) -> None:
        """Add certificates of their keys to the kits that are here; older kits lack them."""
        signer = self.out / "ca" / "ca.key"
        new = {line.name for line in self.lines if line.done.startswith("new")}
        for name in self.record.nodes:
            folder = self.out / name
            if self.record.revoked(name) or not folder.exists() or (folder / "node.crt").exists():
                continue
            if not signer.is_file():
                self.remarks.append(
                    f"{name}: gets no node.crt, for secure aggregation, as {signer} is missing"
                )
                continue
            authority, public = self._kit().ca_certificate.read_bytes(), self._complete(folder)
            made = certificates.make_node_certificate(signer.read_bytes(), authority, public, name)
            publish(folder / "node.crt", made)
            if name not in new:
                self.remarks.append(f"{name}: copy its new node.crt, for secure aggregation, to its machine")

    def _share_key(self, rotate: bool) -> None:
        """Add the shared encryption key to nodes' kits, a new one if needed, and its name to the link's."""
        key = self.out / "he" / KEY_FILE
        done = "kept" if key.exists() and not rotate else "new key"
        if done != "kept":
            write_bytes(key, new_key())
        context = key.read_bytes()
        self.lines.append(Line("he", done, id_of(context)[:16]))
        known = json.dumps(public_of(context), indent=2).encode() + b"\n"
        if not (public := self.out / "link" / PUBLIC_FILE).exists() or public.read_bytes() != known:
            write_bytes(public, known)
            self.changed.add(PUBLIC_FILE)
        for name in self.record.nodes:
            mine = self.out / name / KEY_FILE
            if self.record.revoked(name) or (mine.exists() and mine.read_bytes() == context):
                continue
            if not mine.parent.exists():
                self.remarks.append(f"{name}: its kit is not here; copy {key} into it, mode 0600")
                continue
            write_bytes(mine, context)
            before = next((line for line in self.lines if line.name == name), None)
            if before is None:
                self.lines.append(self._line(name, "new encryption key", KEY_FILE))
            elif "." not in before.changed:
                self.lines[self.lines.index(before)] = replace(before, changed=(*before.changed, KEY_FILE))
        if rotate:
            self.remarks.append(
                "the former encryption key still decrypts what was encrypted with it; runs that "
                "started with it cannot continue, and nodes without the new key are excluded"
            )

    def _complete(self, folder: Path) -> bytes:
        """Return the public key of a member's kit; refuse an incomplete kit or one of another federation."""
        kit = self._member(folder)
        authority = self._kit().ca_certificate.read_bytes()
        if kit.name != folder.name or kit.ca_certificate.read_bytes() != authority:
            raise ConfigError(
                f"{folder}: expected the kit of {folder.name} of this federation; got that of {kit.name} of "
                "another one. Move it away"
            )
        return kit.public if isinstance(kit, SubmitterKit) else kit.public_key.read_bytes()

    def _member(self, folder: Path) -> NodeKit | SubmitterKit:
        """Read the kit of a node or submitter."""
        kit = read_kit(folder)
        return kit if isinstance(kit, SubmitterKit) else read_node_kit(folder)

    def _point(self, folder: Path, link: str) -> None:
        """Write another address of the SuperLink into a member's kit."""
        node = isinstance(self._member(folder), NodeKit)
        texts = (templates.node_texts if node else templates.submitter_texts)(folder.name, link)
        set_key(folder / CONFIG, "link", link)
        write_text(folder / "README.txt", texts["README.txt"])

    def _settle_revoked(self) -> None:
        """Move the keys and kits of members that the record says are revoked."""
        kit = self._kit()
        for name in filter(self.record.revoked, self.record.members):
            entry, folder = self.record.members[name], self.out / name
            public = (kit.nodes if name in self.record.nodes else kit.submitters) / f"{name}.pub"
            fingerprint, nth = entry["fingerprint"], len(entry["earlier"]) + 1
            as_revoked = name if nth == 1 else f"{name}~{nth}"
            if public.exists() and certificates.node_fingerprint(public.read_bytes()) == fingerprint:
                make_folder(kit.revoked)
                publish(kit.revoked / f"{as_revoked}.pub", public.read_bytes())
                public.unlink()
                sync_folder(public.parent)
                self.changed.add("revoked")
            if folder.exists() and certificates.node_fingerprint(self._complete(folder)) == fingerprint:
                away = self.out / "revoked" / as_revoked
                if away.exists():
                    raise ConfigError(
                        f"{folder}: expected no folder, as {away} has its revoked key. Delete it"
                    )
                make_folder(away.parent)
                folder.rename(away)
                sync_folder(self.out)

    # The report

    def _kit(self) -> LinkKit:
        return read_link_kit(self.out / "link")

    def _until(self, path: str) -> str:
        facts = certificates.certificate_facts((self.out / path).read_bytes())
        return f"valid until {facts['expires'][:10]}"

    def _line(self, name: str, done: str, *changed: str) -> Line:
        kind = "node" if name in self.record.nodes else "submitter"
        return Line(name, done, self.record.members[name]["fingerprint"], changed, kind)
