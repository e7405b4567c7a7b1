"""The names of Flower that are not public and that a deployment uses; see `task.flower.names`.

What a change to Flower buys was measured with ``python -m tests.bench --only patches``: the time of a round
of three nodes with secure aggregation, medians of three pairs on two cores.
"""

from task.flower.names import Use

SUPERLINK = Use(
    "starting Flower's SuperLink with our limits, checks and delivery.",
    "`bouquet link` does not start.",
    """
        flwr.superlink.cli.flower_superlink
            flower_superlink()
            SuperLinkLifespan
            FleetServicer
            GRPC_MAX_MESSAGE_LENGTH
            uvicorn
        flwr.superlink.cli.flower_superlink.SuperLinkLifespan
            startup(self)
            shutdown(self)
            state_factory
        flwr.supercore.grpc
            grpc
        flwr.server.superlink.linkstate.LinkStateFactory
            state(self)
            database
        flwr.server.superlink.linkstate.sql_linkstate
            SqlLinkState
        flwr.common.constant
            FLWR_INTERNAL_GRPC_CONTROL_API = 'FLWR_INTERNAL_GRPC_CONTROL_API'
            FLWR_INTERNAL_GRPC_FLEET_API? = 'FLWR_INTERNAL_GRPC_FLEET_API'
    """,
)

RECORDS = Use(
    "querying the SuperLink's database for which node a message, an object or a key belongs to.",
    "a node can answer, read or delete the messages of another.",
    """
        flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState
            session(self)
            get_node_id_by_public_key(self, public_key)
            get_node_info(self, *, node_ids)
            deactivate_node(self, node_id)
            object_store
        flwr.supercore.object_store
            NoObjectInStoreError
        flwr.supercore.object_store.ObjectStore
            get_object_tree(self, object_id)
        flwr.supercore.state.schema.corestate_models
            ObjectPushSessionRoot: session_id root_object_id
        flwr.supercore.state.schema.linkstate_models
            MessageIns: message_id dst_node_id created_at ttl delivered_at
            MessageRes: message_id src_node_id reply_to_message_id
        flwr.supercore.state.schema.objectstore_models
            StoredObject: object_id is_available
    """,
)

DELIVERY = Use(
    "messages that arrive even if a process dies, and calls of nodes that are held until one is there.",
    "a message is lost if its process dies, so that the round waits for it; nodes poll for messages.",
    """
        flwr.superlink.servicer.runtime.runtime_handlers
            pull_messages(request, state, task)
            confirm_message_received(request, state, task)
        flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState
            store_message_res(self, message)
            delete_messages(self, message_ins_ids)
            store_message_and_object_tree(self, message, object_tree, session_id)
            store_object(self, run_id, session_id, object_id, object_content)
            delete_node(self, owner_aid, node_id)
            _cleanup_push_session(self, session_id, *, cleanup_messages)
            _store_generated_message(self, message)
        flwr.supercore.object_store.ObjectStore
            delete(self, object_id)
        flwr.supercore.state.schema.corestate_models
            ObjectPushSession: session_id expires_at pending_count
            Task: token finished_at active_until
        flwr.supercore.state.schema.linkstate_models
            MessageIns: run_id group_id message_type
            MessageRes: delivered_at
            Node: node_id status online_until heartbeat_interval
        flwr.app.message
            make_message(metadata, *, error)
        flwr.app.message.Message
            object_id
        flwr.app.metadata.Metadata
            _message_id
    """,
)

ECONOMY = Use(
    "caching answers of the SuperLink's state briefly, and writing sums once a second.",
    "the SuperLink queries its database for the key, the run and the task at each call: rounds take 1.5 "
    "times as long.",
    """
        flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState
            get_node_id_by_public_key(self, public_key)
            get_task_by_token(self, token)
            get_run_status(self, run_ids)
            delete_node(self, owner_aid, node_id)
            finish_task(self, task_id, sub_status, details)
            store_traffic(self, run_id, *, bytes_sent, bytes_recv)
            add_clientapp_runtime(self, run_id, runtime)
    """,
)

TREES = Use(
    "checking a message, registering and deleting its objects in a few statements that are built once.",
    "the SuperLink needs five statements for each object of a message: rounds take 3.4 times as long.",
    """
        flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState
            preregister_object_tree(self, object_tree, session_id)
            _lock_run(self, run_id, *, require_unfinished)
            _check_stored_messages(self, message_ids, run_id)
        flwr.supercore.state.schema.corestate_models
            Task: task_id finished_at
        flwr.supercore.state.schema.linkstate_models
            MessageIns: message_id created_at ttl run_id
            Run: run_id federation_id primary_task_id
        flwr.supercore.object_store.ObjectStore
            preregister(self, run_id, object_tree)
            get_object_tree(self, object_id)
            delete(self, object_id)
        flwr.supercore.object_store.sql_object_store
            SqlObjectStore
        flwr.supercore.object_store.sql_object_store.SqlObjectStore
            session(self)
    """,
)

OBJECTS = Use(
    "plain SQL on the tables of objects.",
    "the SuperLink needs five statements for each object of a message.",
    """
        flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState
            session(self)
        flwr.supercore.state.schema.objectstore_models
            StoredObject(object_id, content, is_available, ref_count)
            ObjectChild(parent_id, child_id)
            RunObject(run_id, object_id)
            ObjectStoreLock: lock_value
        flwr.supercore.state.schema.corestate_models
            ObjectPushSession: session_id run_id expires_at pending_count
            ObjectPushSessionRoot(session_id, root_object_id)
            ObjectPushSessionPending(session_id, object_id)
        flwr.supercore.inflatable.inflatable_utils
            validate_object_content(content)
    """,
)

RUNTIME = Use(
    "the Runtime API's calls of a round without Flower's layers, and long polls.",
    "each call of a ServerApp costs the SuperLink ten times as much, and it polls for replies: rounds take "
    "2.5 times as long.",
    """
        flwr.superlink.servicer.runtime.runtime_handlers
            push_messages(request, state, task)
            push_object(request, state, task)
            pull_messages(request, state, task)
            pull_object(request, state, task)
            confirm_message_received(request, state, task)
            get_nodes(request, state, task)
        flwr.supercore.dependencies.task
            authenticate_task(request, token, state)
        flwr.supercore.error
            http_error_translator(request, call_next)
        flwr.supercore.error.ApiErrorCode
            INVALID_PROTOBUF_PAYLOAD
    """,
)

FLEET = Use(
    "checks and limits on what a node sends, before Flower handles it.",
    "a node can answer in another node's name, or fill the SuperLink's memory and disk.",
    """
        flwr.server.superlink.fleet.grpc_rere.fleet_servicer
            FleetServicer
        flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor
            "request_deserializer"
        flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor.NodeAuthServerInterceptor
            intercept_service(self, continuation, handler_call_details)
        flwr.supercore.error
            FlowerError(code, message)
        flwr.supercore.error.ApiErrorCode
            FLEET_RUN_STATUS_NOT_ALLOWED
        flwr.supercore.error.FlowerError
            code
    """,
)

GATE = Use(
    "requiring a proof of the kit's secret for the Control API, which has no authentication of its own.",
    "anyone who reaches the port can start runs, or `bouquet link` does not start.",
    """
        flwr.superlink.routers
            control
            fleet?
    """,
)

CONNECTION = Use(
    "giving Flower's own commands a link's address and the token that it asks for.",
    "`bouquet connect` fails.",
    """
        flwr.cli.flower_config
            init_flwr_config()
        flwr.supercore.credential_store.file_credential_store
            FileCredentialStore(file_path)
    """,
)

SERVER_APPS = Use(
    "a warm process that acquires ServerApps and forks for each.",
    "no ServerApp is started: no run begins.",
    """
        flwr.supercore.auth
            create_superexec_auth_metadata(*, auth_secret, method, request)
            derive_auth_secret(master_secret)
        flwr.supercore.runtime.runtime_http_client
            "/flwr.proto.Runtime/AcquireTask"
        flwr.supercore.runtime
            RuntimeHttpClient
        flwr.supercore.runtime.RuntimeHttpClient
            PushTaskOutput(self, request)
            PullTaskInput(self, request)
        flwr.supercore.logger
            mirror_output_to_queue(log_queue)
        flwr.superlink.runtime.run_serverapp
            run_serverapp(*, runtime_api_address, log_queue, token, insecure, certificates,
                runtime_dependency_install)
            install_from_fab(fab_file)
    """,
)

RETRIES = Use(
    "calls of a ServerApp that are repeated sooner.",
    "a ServerApp's call that failed is repeated after up to 20 s.",
    """
        flwr.supercore.retry.grpc_retry
            MAX_RETRY_DELAY?
        flwr.supercore.retry.http_retry
            MAX_RETRY_DELAY?
    """,
)

FLEET_CALLS = Use(
    "a node's calls to the Fleet API.",
    "a node reaches no SuperLink.",
    """
        flwr.common.serde
            message_from_proto(message_proto)
            message_to_proto(message)
    """,
)

CLIENT_APPS = Use(
    "running a ClientApp with a message of the Fleet API, and taking its reply apart.",
    "a node answers every message with an error.",
    """
        flwr.common.serde
            recorddict_from_proto(recorddict_proto)
            recorddict_to_proto(recorddict)
        flwr.supercore.inflatable.inflatable_object
            get_all_nested_objects(obj)
            get_object_tree(obj)
            no_object_id_recompute()
        flwr.supercore.inflatable.inflatable_utils
            inflate_object_from_contents(object_id, object_contents)
        flwr.clientapp.utils
            get_load_client_app_fn(default_app_ref, app_path, *, multi_app)
        flwr.cli.install
            install_from_fab(fab_file, *, skip_prompt)
        flwr.app.message
            remove_content_from_message(message)
    """,
)

ENVIRONMENT = Use(
    "processes that don't check for updates.",
    "a process waits for a machine that it cannot reach.",
    """
        flwr.supercore.constant
            FLWR_DISABLE_UPDATE_CHECK = 'FLWR_DISABLE_UPDATE_CHECK'
    """,
)

USES = (
    SUPERLINK, RECORDS, FLEET, GATE, DELIVERY, ECONOMY, TREES, OBJECTS, RUNTIME,
    CONNECTION, SERVER_APPS, RETRIES, FLEET_CALLS, CLIENT_APPS, ENVIRONMENT,
)  # fmt: skip
