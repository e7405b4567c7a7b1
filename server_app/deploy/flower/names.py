"""The names of Flower that are not public and that a deployment uses; see `task.flower.names`."""

from task.flower.names import Use

SUPERLINK = Use(
    "starting Flower's SuperLink with our limits, checks and delivery.",
    "`bouquet link` does not start.",
    """
        flwr.superlink.cli.flower_superlink
            flower_superlink()
            SuperLinkLifespan(config, state_factory)
            FleetServicer(state_factory, objectstore_factory, ... 9c619ae5
            _run_fleet_api_grpc_rere(address, state_factory, ... 30901130
            GRPC_MAX_MESSAGE_LENGTH = 2147483647
            uvicorn: module
        flwr.superlink.cli.flower_superlink.SuperLinkLifespan
            startup(self)
            state_factory: attribute
        flwr.supercore.grpc
            grpc: module
        flwr.server.superlink.linkstate.LinkStateFactory
            state(self)
            database: attribute
        flwr.common.constant
            FLWR_INTERNAL_GRPC_CONTROL_API = 'FLWR_INTERNAL_GRPC_CONTROL_API'
            FLWR_INTERNAL_GRPC_FLEET_API = 'FLWR_INTERNAL_GRPC_FLEET_API'
            FLWR_INTERNAL_GRPC_FLEET_API none
    """,
)

DELIVERY = Use(
    "messages that arrive even if a process dies.",
    "a message is lost if its process dies, and the round waits for it.",
    """
        flwr.superlink.servicer.runtime.runtime_handlers
            pull_messages(request, state, task)
            confirm_message_received(request, state, task)
        flwr.server.superlink.linkstate.sql_linkstate
            SqlLinkState(database_path, federation_manager, object_store)
        flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState
            session(self)
            store_message_res(self, message)
            delete_messages(self, message_ins_ids)
            store_message_and_object_tree(self, message, object_tree, session_id)
            store_object(self, run_id, session_id, object_id, object_content)
            delete_node(self, owner_aid, node_id)
            get_node_id_by_public_key(self, public_key)
            get_node_info(self, *, node_ids=, owner_aids=, statuses=)
            deactivate_node(self, node_id)
            object_store: property
            _cleanup_push_session(self, session_id, *, cleanup_messages)
            _store_generated_message(self, message)
        flwr.supercore.object_store
            NoObjectInStoreError(message)
        flwr.supercore.object_store.ObjectStore
            delete(self, object_id)
            get_object_tree(self, object_id)
        flwr.supercore.inflatable.inflatable_object
            iterate_object_tree(tree)
        flwr.supercore.state.schema.corestate_models
            ObjectPushSession: session_id run_id expires_at pending_count
            ObjectPushSessionRoot: session_id root_object_id
            Task: task_id type run_id fab_hash model_ref ... edd0c405
        flwr.supercore.state.schema.linkstate_models
            MessageIns: message_id group_id run_id src_node_id ... 703f3633
            MessageRes: message_id group_id run_id src_node_id ... 703f3633
            Node: node_id owner_aid owner_name status ... be2640e6
        flwr.supercore.state.schema.objectstore_models
            StoredObject: object_id content is_available ref_count
        flwr.supercore.utils
            int64_to_uint64(signed)
            uint64_to_int64(unsigned)
        flwr.supercore.constant
            NodeStatus: REGISTERED=registered ONLINE=online ... b21b8a38
            OBJECT_PUSH_SESSION_TTL_SECONDS = 180
        flwr.supercore.date
            now()
        flwr.app.message
            make_message(metadata, content=, error=)
        flwr.app.message.Message
            object_id: property
        flwr.app.metadata.Metadata
            _message_id: attribute
        flwr.common.constant
            SUPERLINK_NODE_ID = 1
            HEARTBEAT_PATIENCE = 2
            ErrorCode: UNKNOWN=0 LOAD_CLIENT_APP_EXCEPTION=1 ... 00c8353a
    """,
)

ECONOMY = Use(
    "caching answers of the SuperLink's state briefly, and writing traffic once a second.",
    "each call costs the SuperLink three times as much.",
    """
        flwr.server.superlink.linkstate.sql_linkstate.SqlLinkState
            get_task_by_token(self, token)
            get_run_status(self, run_ids)
            finish_task(self, task_id, sub_status, details)
            store_traffic(self, run_id, *, bytes_sent, bytes_recv)
            preregister_object_tree(self, object_tree, session_id)
        flwr.supercore.object_store.ObjectStore
            preregister(self, run_id, object_tree)
        flwr.supercore.object_store.sql_object_store
            SqlObjectStore: _MUTATION_LOCK_ID=mutation
        flwr.supercore.inflatable.inflatable_object
            get_object_id(object_content)
        flwr.supercore.inflatable.inflatable_utils
            validate_object_content(content)
    """,
)

RUNTIME = Use(
    "the Runtime API's calls of a round without Flower's layers, and long polls.",
    "`bouquet link` does not start.",
    """
        flwr.superlink.servicer.runtime.runtime_handlers
            push_messages(request, state, task)
            push_object(request, state, task)
            pull_object(request, state, task)
            get_nodes(request, state, task)
        flwr.proto.runtime_pb2
            PullAppMessagesRequest: message_ids
            PushAppMessagesRequest: messages_list message_object_trees
            GetNodesRequest: no fields
        flwr.supercore.constant
            TASK_TOKEN_HEADER = 'flwr-task-token'
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
            FleetServicer(state_factory, objectstore_factory, ... 9c619ae5
        flwr.server.superlink.fleet.grpc_rere.fleet_servicer.FleetServicer
            ActivateNode(self, request, context)
            SendNodeHeartbeat(self, request, context)
            GetFab(self, request, context)
            PullMessages(self, request, context)
            PushMessages(self, request, context)
            PullObject(self, request, context)
            PushObject(self, request, context)
            ConfirmMessageReceived(self, request, context)
        flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor
            "request_deserializer"
        flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor.NodeAuthServerInterceptor
            intercept_service(self, continuation, handler_call_details)
        flwr.supercore.error
            FlowerError(code, message, public_details=)
        flwr.supercore.error.ApiErrorCode
            FLEET_RUN_STATUS_NOT_ALLOWED
        flwr.supercore.error.FlowerError
            code: attribute
        flwr.proto.fleet_pb2
            ActivateNodeRequest: public_key heartbeat_interval
            PullMessagesRequest: node message_ids
            PullMessagesResponse: reconnect messages_list message_object_trees
            PushMessagesRequest: node messages_list message_object_trees ... 6adaa0ac
        flwr.proto.heartbeat_pb2
            SendNodeHeartbeatResponse: success
        flwr.proto.message_pb2
            ConfirmMessageReceivedRequest: node run_id message_object_id
            ObjectTree: object_id children
            PullObjectRequest: node run_id object_id
            PullObjectResponse: object_found object_available object_content
            PushObjectRequest: node run_id object_id object_content session_id
            PushObjectResponse: stored
        flwr.common.constant
            PUBLIC_KEY_HEADER = 'flwr-public-key-bin'
            TIMESTAMP_HEADER = 'flwr-timestamp'
            TIMESTAMP_TOLERANCE = 300
            SYSTEM_TIME_TOLERANCE = 5
        flwr.supercore.utils
            get_metadata_bytes(metadata, key)
            get_metadata_str(metadata, key)
        flwr.supercore.primitives.asymmetric
            bytes_to_public_key(public_key_bytes)
            verify_signature(public_key, message, signature)
    """,
)

GATE = Use(
    "requiring a proof of the kit's secret for the Control API, which has no authentication of its own.",
    "anyone who reaches the port can start runs, or `bouquet link` does not start.",
    """
        flwr.superlink.routers
            control: module
            fleet: module
            fleet none
    """,
)

ROUTINE = Use(
    "keeping the link's own requests out of the SuperLink's log.",
    "the log grows by a line each second.",
    """
        flwr.superlink.servicer.control.control_handlers
            "ControlServicer.ListRuns"
            "ControlServicer.ListNodes"
    """,
)

CONTROL = Use(
    "querying the Control API for nodes and runs.",
    "`bouquet link` knows neither its nodes nor its runs.",
    """
        flwr.supercore.control.control_http_client
            ControlHttpClient(base_url, *, interceptors=, verify=, ... 144ed01d
        flwr.supercore.control.control_http_client.ControlHttpClient
            _client: attribute
            close(self)
            ListNodes(self, request)
            ListRuns(self, request)
            RegisterNode(self, request)
            StartRun(self, request)
            StopRun(self, request)
            UnregisterNode(self, request)
        flwr.proto.control_pb2
            ListNodesRequest: no fields
            ListNodesResponse: nodes_info now
            ListRunsRequest: run_id limit
            ListRunsRequest: run_id limit skip
            ListRunsResponse: run_dict now
            RegisterNodeRequest: public_key location name
            RegisterNodeResponse: node_id
            StartRunRequest: fab override_config ... 26993c04
            StartRunResponse: run_id note series_id federation
            StopRunRequest: run_id
            UnregisterNodeRequest: node_id
        flwr.proto.node_pb2
            NodeInfo: node_id owner_aid owner_name status ... be2640e6
        flwr.proto.run_pb2
            Run: run_id fab_id fab_version override_config ... 34d144c8
            RunStatus: status sub_status details
        flwr.common.serde
            fab_to_proto(fab)
            user_config_to_proto(user_config)
        flwr.supercore.fab
            Fab(hash_str, content, verifications)
        flwr.supercore.protobuf.client
            ProtobufCall
            ProtobufRequestContext(rpc_method, message, request)
        flwr.supercore.primitives.asymmetric
            public_key_to_bytes(public_key)
    """,
)

SERVER_APPS = Use(
    "a warm process that acquires ServerApps and forks for each.",
    "no ServerApp is started: no run begins.",
    """
        flwr.supercore.auth
            load_superexec_auth_secret(secret_file)
        flwr.supercore.interceptors
            RuntimeVersionHttpInterceptor(component_name)
            SuperExecAuthHttpInterceptor(*, master_secret, protected_methods)
            RuntimeTokenHttpInterceptor(token)
        flwr.supercore.runtime.runtime_http_client
            "/flwr.proto.Runtime/AcquireTask"
        flwr.supercore.runtime
            RuntimeHttpClient(base_url, *, interceptors=, verify=, ... 144ed01d
        flwr.supercore.runtime.RuntimeHttpClient
            from_server_address(server_address, insecure, ... 691fd656
            AcquireTask(self, request)
            PushTaskOutput(self, request)
            PullTaskInput(self, request)
            _client: attribute
        flwr.proto.runtime_pb2
            AcquireTaskRequest: supported_task_types agentapp_fab_hashes
            AcquireTaskResponse: task token
            PullTaskInputRequest: no fields
            PullTaskInputResponse: context run fab federation_config task_id
            PushTaskOutputRequest: context sub_status details clientapp_runtime
        flwr.supercore.retry
            make_simple_http_retry_invoker()
        flwr.supercore.retry.grpc_retry
            MAX_RETRY_DELAY = 20
        flwr.supercore.retry.http_retry
            MAX_RETRY_DELAY = 20
        flwr.supercore.logger
            mirror_output_to_queue(log_queue)
        flwr.superlink.runtime.run_serverapp
            run_serverapp(runtime_api_address, log_queue, token, ... 9ef2108a
            install_from_fab(fab_file, install_dir=, skip_prompt=)
        flwr.common.constant
            SubStatus: COMPLETED=completed FAILED=failed STOPPED=stopped
    """,
)

FLEET_CALLS = Use(
    "a node's calls to the Fleet API.",
    "a node reaches no SuperLink.",
    """
        flwr.proto.fab_pb2
            GetFabRequest: node hash_str run_id
        flwr.proto.fleet_pb2
            DESCRIPTOR
            DeactivateNodeRequest: node_id
        flwr.proto.heartbeat_pb2
            SendNodeHeartbeatRequest: node heartbeat_interval
        flwr.proto.message_pb2
            Message: metadata content error
        flwr.proto.node_pb2
            Node: node_id
        flwr.proto.run_pb2
            GetRunRequest: node run_id
        flwr.common.constant
            SIGNATURE_HEADER = 'flwr-signature-bin'
        flwr.common.serde
            message_from_proto(message_proto)
            message_to_proto(message)
    """,
)

CLIENT_APPS = Use(
    "running a ClientApp with a message of the Fleet API, and taking its reply apart.",
    "a node answers every message with an error.",
    """
        flwr.proto.fab_pb2
            Fab: hash_str content verifications
        flwr.proto.recorddict_pb2
            RecordDict: items
        flwr.common.serde
            fab_from_proto(fab)
            recorddict_from_proto(recorddict_proto)
            recorddict_to_proto(recorddict)
            run_from_proto(run_proto)
        flwr.supercore.inflatable.inflatable_object
            get_all_nested_objects(obj)
            get_object_tree(obj)
            no_object_id_recompute()
        flwr.supercore.inflatable.inflatable_utils
            inflate_object_from_contents(object_id, object_contents, *, ... ba8271c4
        flwr.clientapp.utils
            get_load_client_app_fn(default_app_ref, app_path, multi_app)
        flwr.cli.install
            install_from_fab(fab_file, install_dir=, skip_prompt=)
        flwr.app.message
            remove_content_from_message(message)
        flwr.supercore.run
            Run(run_id, fab_id, fab_version, fab_hash, ... 37c58b35
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

LINK = (SUPERLINK, DELIVERY, ECONOMY, RUNTIME, FLEET)  # without these no SuperLink is started
USES = (*LINK, GATE, ROUTINE, CONTROL, SERVER_APPS, FLEET_CALLS, CLIENT_APPS, ENVIRONMENT)
