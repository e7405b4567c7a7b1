"""Flower's services between machines: the calls of each, their paths, and the protobufs that they carry.

A protobuf is made and read by the name of its call. So only the three files that declare the services are
named, and not each of some forty generated classes, which have moved between files before.
"""

import re
from typing import Any

from flwr.proto.control_pb2 import DESCRIPTOR as CONTROL_FILE
from flwr.proto.fleet_pb2 import DESCRIPTOR as FLEET_FILE
from flwr.proto.runtime_pb2 import DESCRIPTOR as RUNTIME_FILE
from google.protobuf.message_factory import GetMessageClass

Protobuf = Any  # a message of a generated class, see above


class Service:
    """One service.

    Args:
        file: Descriptor of the file that declares it.
        name: Its name, such as "Fleet".
    """

    def __init__(self, file: Any, name: str) -> None:
        self._service = file.services_by_name[name]
        self.calls: tuple[str, ...] = tuple(self._service.methods_by_name)

    def grpc_path(self, call: str) -> str:
        """Return the path of a call, ``PullMessages``, over gRPC."""
        return f"/{self._service.full_name}/{call}"

    def http_path(self, call: str) -> str:
        """Return its path over HTTP, ``/v1/fleet/pull-messages``."""
        return f"/v1/{self._service.name.lower()}/{re.sub(r'(?<=[a-z])(?=[A-Z])', '-', call).lower()}"

    def request_type(self, call: str) -> Any:
        """Return the class of a call's request."""
        return GetMessageClass(self._service.methods_by_name[call].input_type)

    def answer_type(self, call: str) -> Any:
        """Return the class of a call's answer."""
        return GetMessageClass(self._service.methods_by_name[call].output_type)

    def request(self, call: str, /, **fields: Any) -> Protobuf:
        """Return a call's request; a field that is a protobuf may be given as its fields."""
        return self.request_type(call)(**fields)

    def answer(self, call: str, /, **fields: Any) -> Protobuf:
        """Return the answer to a call, see `request`."""
        return self.answer_type(call)(**fields)


def runtime_message(name: str, /) -> Any:
    """Return a class of the Runtime API's protobufs; Flower declares its calls in code."""
    return GetMessageClass(RUNTIME_FILE.message_types_by_name[name])


CONTROL, FLEET = Service(CONTROL_FILE, "Control"), Service(FLEET_FILE, "Fleet")
