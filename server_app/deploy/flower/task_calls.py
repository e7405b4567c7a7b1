"""The Runtime API's calls of the warm parent: to acquire a task, and to report how one ended.

They are protobufs over HTTP on a connection that is kept: a TLS handshake is most of what a call costs.
"""

import ssl
import time
from collections.abc import Mapping

import httpx
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from google.protobuf.message import DecodeError

from server_app.deploy.calls.fleet_transport import TYPE
from server_app.deploy.calls.protocol import TASK_FAILED, TASK_TOKEN_HEADER
from task import timing
from task.flower.services import Protobuf, runtime_message

SERVER_APP = "flwr-serverapp"
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"  # what the SuperExec secret signs


class TaskCalls:
    """These calls of one Runtime API.

    Args:
        address: HOST:PORT.
        certificates: Root certificates; None = plaintext, on loopback.
    """

    def __init__(self, address: str, certificates: bytes | None = None) -> None:
        trusted = ssl.create_default_context(cadata=certificates.decode()) if certificates else False
        self._client = httpx.Client(
            base_url=f"{'https' if certificates else 'http'}://{address}/v1/runtime/",
            verify=trusted,
            timeout=timing.TASK_ANSWER_S,
            limits=httpx.Limits(keepalive_expiry=timing.KEPT_S),
            headers={"content-type": TYPE, "accept": TYPE},
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def acquire(self, secret: bytes) -> str:
        """Acquire a ServerApp that is to be started; return its token, "" if there is none.

        Args:
            secret: The SuperExec secret.

        Raises:
            httpx.HTTPError: The API does not answer, or refuses.
            ValueError: The answer cannot be read.
        """
        request = runtime_message("AcquireTaskRequest")(supported_task_types=[SERVER_APP])
        signed = create_superexec_auth_metadata(
            auth_secret=derive_auth_secret(secret), method=ACQUIRE, request=request
        )
        try:
            content = self._post("acquire-task", request, signed)
            answer = runtime_message("AcquireTaskResponse").FromString(content)
        except DecodeError as err:
            raise ValueError(f"expected a task or none; got {err}") from None
        return answer.token if answer.HasField("task") else ""

    def report(self, token: str, why: str) -> None:
        """Report, with a task's token, that it failed; repeat the call while the API is unavailable.

        Raises:
            httpx.HTTPStatusError: The API refuses: the task has ended otherwise.
        """
        request = runtime_message("PushTaskOutputRequest")(sub_status=TASK_FAILED, details=why)
        while True:
            try:
                self._post("push-task-output", request, {TASK_TOKEN_HEADER: token})
            except (httpx.TransportError, httpx.HTTPStatusError) as err:
                if isinstance(err, httpx.HTTPStatusError) and not err.response.is_server_error:
                    raise
                time.sleep(timing.RETRY_LONGEST_S)
            else:
                return

    def _post(self, path: str, request: Protobuf, headers: Mapping[str, str]) -> bytes:
        answer = self._client.post(path, content=request.SerializeToString(), headers=headers)
        answer.raise_for_status()
        return answer.content
