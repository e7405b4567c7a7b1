"""The texts of a start kit: its configuration, its README, its systemd unit."""

from server_app.deploy.kits.kit import FILES, MAX_RATE, MAX_REPLY, MAX_RUNS, MIN_EXAMPLES
from server_app.deploy.kits.parsing import read_address

HOME = "/srv/bouquet"  # where the README and the unit expect the kits of a machine
CONTROL_PORT = 8000
HTTP_PORT = 9095
SUBMIT_PORT = 9096

LINK_CONFIG = """\
kind = "link"
fleet = "{any}:{port}"  # where the Fleet API listens: the port that nodes come to
# fleet-http = "{any}:{http}"  # the same over HTTP, for SuperNodes of Flower 1.40 and later
# submit = "{any}:{submit}"  # where Flower's own commands (bouquet connect) and submitters come to
control = "127.0.0.1:{control}"  # Control and Runtime APIs: loopback or a private network
address = "{link}"  # where nodes reach the Fleet API
max-reply = "{max_reply}"  # largest reply of a node; K, M, G are powers of 1024
max-rate = {max_rate}  # messages of a node per minute
max-runs = {max_runs}  # jobs that run at the same time, on different nodes
"""

NODE_CONFIG = """\
kind = "node"
name = "{name}"
link = "{link}"  # the SuperLink's Fleet API

[policy]  # what this site takes part in; 0 = no limit
apps = "installed"  # installed = only an app equal to the one installed here; any = what the SuperLink sends
max-rounds = 0  # training messages answered in one run
min-examples = {min_examples}  # fewest examples of this site's data for an update, or for loss and metrics
min-steps = 0  # fewest local steps of an update, unless each step uses all examples
run-paths = false  # true = a run may name data-path, data-dir, cache-dir and state-dir on this machine
packages = []  # ["net"] = runs may use the code net.py or net/, installed or in the folder code of this kit;
              # ["hf:OWNER/NAME"] = and this data set of Hugging Face, which this machine may download
secagg = false  # true = take part only in runs with secure aggregation
he = false  # true = take part only in runs with homomorphic encryption
max-epsilon = 0.0  # largest epsilon of all runs together; needs dp.noise-by="nodes" or dp.unit="example"
delta = 1e-5  # delta of max-epsilon
keep-models = false  # true = keep the newest global model of each run in models/, for bouquet predict --kit
names = false  # true = send names of columns, categories and classes to the link and into the model's file
own-model = false  # true = send this site's own model to the link and the other sites (cross-evaluation)
max-questions = 0  # most questions for exact sums (statistics, regressions) answered, all runs together
missing-counts = false  # true = counts of missing values may leave, also of fewer than min-examples
pooled-counts = false  # true = counts of few persons may leave in masked sums of min-examples persons or more
"""

LINK_README = """\
1. This folder makes a machine the SuperLink {link}. Its *.key and *.secret are secret: mode 0600.
2. Put it there as {kit}, for a user of its own: useradd --system bouquet; chown -R bouquet {kit}
3. Start: bouquet link {kit}, or as a service: cp {kit}/bouquet-link.service /etc/systemd/system/ \
&& systemctl enable --now bouquet-link (it expects /opt/bouquet/bin/bouquet)
4. Open TCP port {port} to the nodes, those of fleet-http and submit if kit.toml has them, nothing else. \
Submit on this machine: bouquet run --link {kit} -r demo
5. Watch: bouquet status {kit}. After adding or revoking nodes or submitters, copy nodes/, submitters/ and \
revoked/ again.
"""

NODE_README = """\
1. This folder makes a machine the node {name} of {link}. Its node.key is secret: mode 0600.
2. Put it there as {kit}, for a user of its own: useradd --system bouquet; chown -R bouquet {kit}
3. Start: bouquet node {kit} --data PATH, or as a service: \
cp {kit}/bouquet-node.service /etc/systemd/system/ \
&& systemctl enable --now bouquet-node (it expects /opt/bouquet/bin/bouquet and {home}/data)
4. No port needs to be open. [policy] in kit.toml says what this site takes part in.
5. Key lost or stolen? Ask the person who made this kit to run bouquet provision --out DIR --revoke {name}
"""

SUBMITTER_CONFIG = """\
kind = "submitter"
name = "{name}"
link = "{link}"  # the link's port for submitters, its key submit
"""

SUBMITTER_README = """\
1. With this folder {name} submits runs to the link at {link}. Its submitter.secret is secret: mode 0600.
2. Put it where only {name} can read it, on any machine with the app that the link runs.
3. Submit: bouquet run --link FOLDER -r demo; watch: bouquet status FOLDER; results come to FOLDER/runs.
4. For Flower's own commands: bouquet connect FOLDER, then flwr run APP {name}, flwr ls {name}, ...
5. Secret lost or stolen? Ask the person who made this kit to run bouquet provision --out DIR --revoke {name}
"""

# No MemoryDenyWriteExecute: torch compiles code. PrivateDevices only where no GPU is needed.
UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=bouquet
ExecStart={command}
Restart=always
RestartSec=5
# Usage, data and configuration, see "Exit codes" in docs/howto/deploy.md: another start would end alike.
RestartPreventExitStatus=2 65 78
TimeoutStopSec=30
KillMode=mixed
WorkingDirectory={kit}
Environment=HOME={kit}/cache
UMask=0077
LimitCORE=0
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ReadWritePaths={kit}
ProtectHome=read-only
PrivateTmp=yes
{more}ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


def place(name: str) -> str:
    """Return the folder of a kit on its machine."""
    return f"{HOME}/{name}"


def link_texts(link: str) -> dict[str, str]:
    """Return the text files of the SuperLink's kit, by file name.

    `link` is HOST:PORT by which nodes reach it.
    """
    host, port = read_address(link, "the SuperLink's address")
    kit = place("link")
    return {
        "kit.toml": LINK_CONFIG.format(
            any="[::]" if ":" in host else "0.0.0.0",
            port=port,
            http=HTTP_PORT if port != HTTP_PORT else HTTP_PORT + 1,
            submit=SUBMIT_PORT if port != SUBMIT_PORT else SUBMIT_PORT + 1,
            control=CONTROL_PORT if port != CONTROL_PORT else CONTROL_PORT + 1,
            link=link,
            max_reply=MAX_REPLY,
            max_rate=MAX_RATE,
            max_runs=MAX_RUNS,
        ),
        "README.txt": LINK_README.format(link=link, kit=kit, port=port),
        "bouquet-link.service": UNIT.format(
            description=f"Bouquet SuperLink {link}",
            command=f"/opt/bouquet/bin/bouquet link {kit}",
            kit=kit,
            more=f"PrivateDevices=yes\nLimitNOFILE={FILES}\n",
        ),
    }


def node_texts(name: str, link: str) -> dict[str, str]:
    """Return the text files of a node's kit, by file name.

    `link` is HOST:PORT of the SuperLink.
    """
    kit = place(name)
    return {
        "kit.toml": NODE_CONFIG.format(name=name, link=link, min_examples=MIN_EXAMPLES),
        "README.txt": NODE_README.format(name=name, link=link, kit=kit, home=HOME),
        "bouquet-node.service": UNIT.format(
            description=f"Bouquet node {name} of {link}",
            command=f"/opt/bouquet/bin/bouquet node {kit} --data {HOME}/data",
            kit=kit,
            more="",
        ),
    }


def submitter_texts(name: str, link: str) -> dict[str, str]:
    """Return the text files of a submitter's kit, by file name.

    `link` is HOST:PORT of the link's port for submitters.
    """
    return {
        "kit.toml": SUBMITTER_CONFIG.format(name=name, link=link),
        "README.txt": SUBMITTER_README.format(name=name, link=link),
    }
