"""What the messages of refusals offer, and the test that does it: starts where it is refused, does what the message
says, and ends where the message promises.

By the place of a message: its file, and the function or error class that words it. Each entry is a command without
``weir``, or words of the message, with its test. ``tests/test_advice.py`` compares this with the texts: a command that
is new has to be entered, and what is entered has to be in the text.
"""

from __future__ import annotations

CLI = "tests/pipelines/cli"
CHANGED = f"{CLI}/test_changed_programs.py::test_"
BACKFILLS = f"{CLI}/test_refused_backfills.py::test_"
QUERIES = "tests/pipelines/queries/test_queries.py::test_"
COMMANDS = f"{CLI}/test_refused_commands.py::test_"
TABLES = f"{CLI}/test_lost_tables.py::test_"
TOPICS = "tests/integration/test_lost_topics.py::test_"
PATTERNS = "tests/integration/test_patterns.py::test_"
SPARK = "tests/pipelines/spark"
EVOLUTION = f"{SPARK}/test_evolution.py::test_"
SOURCES = f"{SPARK}/test_sources_of_rebuilds.py::test_"

PACKAGE = "tests/pipelines/operations/test_package.py::test_"
LOST = TABLES + "what_was_lost_is_put_back_or_the_application_is_reset"
FORMAT = TABLES + "a_format_that_this_version_does_not_know_is_read_by_the_one_that_does_or_reset"
NEEDS_A_COMMIT = COMMANDS + "what_needs_a_commit_is_done_after_the_first_run"
UNKNOWN_BACKFILL = BACKFILLS + "an_unknown_backfill_is_found_in_the_list"
LARGE_CHANGE = BACKFILLS + "a_large_change_is_discarded_or_swapped_in_all_the_same"
OTHER_APPLICATION = (
    f"{CLI}/test_plan.py::test_a_program_that_shares_nothing_with_the_committed_one_is_taken_for_another_application"
)
OTHER_ID = CHANGED + "another_id_reads_everything_from_the_beginning_beside_the_old_program"
COMPUTED = CHANGED + "what_the_new_program_would_hold_is_computed_and_swapped_in"
COMPUTED_RENAMED = CHANGED + "a_store_with_another_key_is_computed_under_another_name"
EMPTY_RENAMED = CHANGED + "a_store_with_another_key_begins_empty_under_another_name"
ACCEPTED = CHANGED + "an_accepted_loss_counts_what_is_read_from_then_on"
GROWN = f"{CLI}/test_repartition.py::test_"
RESET = CHANGED + "a_reset_begins_again"
WIDER_ACCEPTED = CHANGED + "with_more_partitions_an_accepted_loss_counts_what_is_read_from_then_on"
WIDER_BEGUN = CHANGED + "with_more_partitions_another_id_and_a_reset_read_all_of_them"
DRAINED = CHANGED + "rows_on_their_way_are_processed_by_a_stop_that_drains"
CAUGHT_UP = CHANGED + "rows_on_their_way_are_processed_by_a_run_that_catches_up"
MADE_ANEW = TOPICS + "a_topic_made_anew_is_refused_and_then_read_from_its_start_or_after_a_reset"
EXPIRED = TOPICS + "records_removed_before_they_were_read_are_refused_and_then_passed_over"
OTHER_CLUSTER = TOPICS + "another_cluster_with_a_topic_of_the_same_name_is_refused_and_the_right_one_is_read_on"
LOST_WAREHOUSE = TOPICS + "a_lost_warehouse_is_refused_until_it_is_back_or_the_application_is_reset"
POSITIONS = "tests/state/stores/test_custom.py::test_an_invalid_file_is_named_with_its_line"
DEMO = f"{CLI}/test_demo.py::test_a_demo_that_is_killed_and_interrupted_continues_and_ends_with_the_same_tables"
JOINED = COMMANDS + "topics_that_are_joined_get_as_many_partitions_or_a_repartition"
EXPECT = "tests/pipelines/operators/test_expect.py::test_"
FUNCTION = COMMANDS + "a_function_is_corrected_and_a_new_start_repeats_the_epoch"
CHANGED_SINKS = (
    "tests/pipelines/sinks/test_changed_sinks.py::"
    "test_another_kind_or_fewer_columns_under_one_name_are_refused_and_both_ways_out_work"
)
PORT = COMMANDS + "a_port_that_is_taken_is_left_out_or_another_chosen"
BUFFER = EVOLUTION + "each_advice_of_a_full_buffer_goes_on_with_its_state"
FEATURE = TABLES + "a_table_that_needs_more_than_weir_writes_is_copied_and_the_application_reset"
OTHER_ROWS = COMMANDS + "rows_of_another_version_are_read_by_the_one_that_ran_last_or_by_this_one_once_it_has_run"
PARTITIONER = COMMANDS + "a_topic_with_another_partitioner_is_repartitioned_or_its_producer_set_to_murmur2"
SASL = "tests/integration/test_sasl.py::test_"
UNKNOWN_TOPIC = f"{CLI}/test_kafka.py::test_an_unknown_topic_is_named_with_a_way_out_that_works"
WHEEL = "tests/integration/test_wheel.py::test_a_project_with_folders_of_our_names_runs_from_the_wheel"
SINK_REFUSED = f"{CLI}/test_sink.py::test_a_refused_record_waits_goes_aside_and_is_sent_again_or_deleted"
SINK_JOBS = "tests/orchestration/jobs/test_sinks.py::test_"
SINK_ANEW = f"{CLI}/test_sink.py::test_a_target_made_anew_gets_the_rows_that_wait_once_somebody_says_so"
SQL = "tests/pipelines/publishing/test_sql_tables.py::test_"
SQL_MISFIT = SQL + "a_table_that_does_not_fit_is_refused_with_statements_that_make_it_fit"
SQL_ADDRESS = SQL + "a_sink_without_a_database_takes_that_of_the_settings_or_of_a_variable"
TWO_FOLDERS = "tests/pipelines/publishing/test_kafka.py::test_"

VARIABLE = (
    "tests/pipelines/publishing/test_http.py::"
    "test_a_variable_that_is_not_set_is_named_and_set_in_the_next_run_it_is_used"
)
VARIABLES = (
    "tests/pipelines/publishing/test_http.py::"
    "test_all_variables_that_cannot_be_headers_are_named_at_the_start_without_their_values"
)
LOGIN = "tests/pipelines/sinks/test_batched.py::test_a_login_is_left_out_of_the_url_and_becomes_a_header"


HEADERS = "tests/pipelines/testing/test_headers.py::test_"


REGISTRY = "tests/pipelines/operations/test_registry.py::test_"
LETTERS = f"{CLI}/test_dead_letters.py::test_"
WAYS_OUT: dict[str, dict[str, str]] = {
    # Headers
    "pipelines/dsl/stream_operations.py StreamOperations.to_delta": {
        "builder.stream(..., headers=True)": HEADERS + "a_table_cannot_have_headers_that_were_not_read",
        "leave headers= out": HEADERS + "a_table_has_the_column_if_asked_for",
    },
    "pipelines/operators/aggregates.py expression_dtype": {
        "read them in a processor": HEADERS + "an_expression_that_names_headers_is_refused_and_a_processor_reads_them",
    },
    "pipelines/processors/running.py": {
        "builder.stream(..., headers=True)": HEADERS + "a_processor_cannot_set_headers_that_go_nowhere",
    },
    "pipelines/serdes/headers.py checked_headers": {
        '[("trace", b"17")]': HEADERS + "headers_that_are_no_pairs_are_refused",
    },
    # Sinks
    "orchestration/component.py WeirApplication.build_defs": {
        "keep the attribute weir in one of them": "tests/orchestration/test_component.py::"
        "test_two_components_that_say_where_weir_works_are_refused_and_one_will_do",
    },
    "orchestration/checks/sinks.py sink_trouble": {
        "launch weir_sink_skip": SINK_JOBS + "a_row_that_is_refused_is_put_aside_by_the_job_that_the_check_names",
        "weir_sink_retry": SINK_JOBS + "rows_that_are_aside_are_sent_again_by_the_job_that_the_check_names",
        "weir_sink_discard": SINK_JOBS + "rows_that_are_aside_are_deleted_while_no_driver_runs",
    },
    "orchestration/jobs/sinks.py _retry_job.ask": {
        "launch weir_sink_retry again": SINK_JOBS + "a_row_that_is_refused_once_more_fails_the_run_which_says_why",
        "weir_sink_discard to delete what is left": SINK_JOBS + "rows_that_are_aside_are_deleted_while_no_driver_runs",
    },
    "pipelines/cli/sink.py skipping": {"sink skip x x": SINK_REFUSED},
    "pipelines/operations/sinks.py retry": {
        "sink list x": "tests/pipelines/operations/test_sinks.py::"
        "test_a_retry_says_what_became_of_the_rows_once_that_is_known"
    },
    "pipelines/publishing/publisher.py MarkLostError": {"sink resume x x": SINK_ANEW},
    "pipelines/publishing/publisher.py OtherOutboxError": {
        "another id": TWO_FOLDERS + "of_two_folders_with_one_application_the_older_one_stops_publishing",
        "sink resume x x": TWO_FOLDERS + "what_waits_goes_on_once_the_other_folder_has_ended",
    },
    "pipelines/publishing/http.py HttpSink.open": {"set it, and start again": VARIABLE},
    "pipelines/publishing/http.py SinkHeaderError": {"and start again": VARIABLES},
    "pipelines/dsl/batched_sinks.py _url": {"pass the header of a variable instead": LOGIN},
    "pipelines/publishing/sql_table.py TargetTable._faults": {
        "CREATE UNIQUE INDEX": SQL_MISFIT,
        "RENAME COLUMN x TO x": SQL_MISFIT,
        "ALTER COLUMN x DROP NOT NULL": SQL_MISFIT,
    },
    "pipelines/publishing/sql_table.py TargetTable._retyped": {"ALTER COLUMN x TYPE x USING x": SQL_MISFIT},
    "pipelines/publishing/sql_table.py TargetTable._set_aside": {"ALTER TABLE x RENAME TO x": SQL_MISFIT},
    "pipelines/publishing/sql_address.py address_of": {
        "set it to the URL of the database": SQL_ADDRESS,
        "set WEIR_SQL_URL": SQL_ADDRESS,
        'pass url="..."': SQL_ADDRESS,
    },
    # Changed programs
    "pipelines/spark/errors.py TopologyChangedError": {
        "run the old program": OTHER_ID,
        "backfill run MODULE:APP --everything": COMPUTED,
        "another id to read everything again": OTHER_ID,
        "reset x": RESET,
        "run MODULE:APP --accept-state-loss": ACCEPTED,
    },
    "pipelines/cli/plan.py _lines": {
        "repartition x": GROWN + "the_state_is_dealt_out_and_counts_go_on",
        "run the old program": OTHER_ID,
        "backfill run MODULE:APP --everything": COMPUTED,
        "another id so that it reads everything from the beginning": OTHER_ID,
        "run MODULE:APP --accept-state-loss": ACCEPTED,
        "run MODULE:APP --accept-lost-records": EXPIRED,
    },
    "pipelines/topology/changes.py _confusions": {
        "aside; if it is the same": CHANGED
        + "a_store_that_looks_renamed_goes_on_under_the_name_that_the_message_gives",
        "would begin empty; if it is the same, call it": EVOLUTION
        + "a_renamed_store_or_column_is_refused_with_a_way_out_that_works",
    },
    "pipelines/spark/errors.py StorePlacementError": {
        "leave the repartition out": CHANGED + "without_the_repartition_misplaced_keys_go_on",
        "run MODULE:APP --accept-state-loss": CHANGED
        + "behind_a_repartition_of_misplaced_keys_a_store_begins_empty_under_another_name",
        "backfill run MODULE:APP --everything": CHANGED
        + "behind_a_repartition_of_misplaced_keys_a_store_is_computed_under_another_name",
    },
    "pipelines/spark/errors.py PendingRowsError": {
        "run OLD_MODULE:APP": DRAINED,
        "stop x --drain": DRAINED,
        "run OLD_MODULE:APP --until-caught-up": CAUGHT_UP,
    },
    "pipelines/spark/errors.py OtherApplicationError": {
        "run MODULE:APP --accept-state-loss": OTHER_APPLICATION,
        "run MODULE:APP --dir OTHER_DIR": OTHER_APPLICATION,
    },
    "pipelines/spark/errors.py ProgramReplacedError": {
        "run MODULE:APP": f"{SPARK}/test_unnamed_stores.py::"
        "test_another_program_that_commits_before_the_claim_makes_the_start_begin_again",
    },
    "pipelines/spark/errors.py PartitionCountError": {
        "repartition x": GROWN + "the_state_is_dealt_out_and_counts_go_on",
        "reset x": WIDER_BEGUN,
        "another id and read from the start": WIDER_BEGUN,
        "run MODULE:APP --accept-state-loss": WIDER_ACCEPTED,
    },
    "pipelines/spark/errors.py GrownWithRowsError": {
        "run MODULE:APP --until-caught-up --committed-partitions": GROWN + "rows_on_their_way_are_processed_first",
        "repartition x": GROWN + "rows_on_their_way_are_processed_first",
        "reset x": GROWN + "rows_on_their_way_are_given_up_with_a_reset",
    },
    "pipelines/spark/errors.py KeysMovedError": {
        "repartition x": GROWN + "any_number_will_do_once_everything_is_read",
    },
    "pipelines/operations/drive.py drive": {
        "add --until-caught-up": GROWN + "a_run_without_an_end_does_not_leave_partitions_out",
    },
    "pipelines/operations/repartition.py _plan": {
        "run MODULE:APP": GROWN + "an_application_that_has_committed_nothing_is_run",
    },
    "pipelines/operations/repartition.py _require_same_topics": {
        "reset x": GROWN + "a_topic_made_anew_is_refused_and_read_after_a_reset",
    },
    "pipelines/repartitioning/errors.py StoresNotDealtError": {
        "run MODULE:APP --accept-state-loss": GROWN + "a_store_without_a_changelog_may_begin_empty",
    },
    "pipelines/repartitioning/errors.py OwnKeysError": {
        "in the same command": GROWN + "a_store_of_a_processor_is_dealt_out_once_its_keys_are_vouched_for",
        "run MODULE:APP --accept-state-loss": GROWN + "stores_that_cannot_be_dealt_out_begin_empty_if_that_is_accepted",
    },
    "pipelines/repartitioning/errors.py MisplacedKeyError": {
        "run MODULE:APP --accept-state-loss": GROWN + "keys_that_another_partitioner_placed_are_found",
    },
    "pipelines/repartitioning/errors.py UnreadRecordsError": {
        "run MODULE:APP --until-caught-up --committed-partitions": GROWN
        + "what_is_left_in_the_old_partitions_is_read_first",
        "run MODULE:APP --accept-state-loss": GROWN + "only_a_multiple_of_the_partitions_is_read_as_before",
    },
    "pipelines/repartitioning/errors.py RowsUnderWayError": {
        "run MODULE:APP --until-caught-up --committed-partitions": GROWN + "rows_on_their_way_are_processed_first",
    },
    "pipelines/repartitioning/plan.py plan_of": {
        "put that one back": GROWN + "another_program_is_refused",
    },
    "pipelines/repartitioning/plan.py _why_not": {
        "first run the program with logging=True": GROWN + "a_store_without_a_changelog_gets_one_first",
    },
    "pipelines/repartitioning/unread.py _require_written_so": {
        "run MODULE:APP --accept-state-loss": GROWN + "keys_that_the_serde_writes_otherwise_are_found",
    },
    "pipelines/operations/errors.py OtherProgramError": {
        "run MODULE:APP": COMMANDS + "a_program_that_lacks_tasks_is_verified_once_it_has_run_or_the_other_is_back",
        "put the one that made the commit back": COMMANDS
        + "a_program_that_lacks_tasks_is_verified_once_it_has_run_or_the_other_is_back",
    },
    "pipelines/operations/aside.py _require_aside": {
        "take it out of the program, run that, and remove it then": COMMANDS
        + "a_store_in_use_is_removed_after_a_program_without_it_has_run",
    },
    "pipelines/operations/migration.py _require_committed": {
        "run x --until-caught-up": "tests/pipelines/operations/test_migration.py::"
        "test_an_edited_program_is_refused_until_it_has_run_and_no_table_is_changed",
    },
    "state/errors.py TableSchemaError": {
        "reset x": RESET,
        "keep the old ones": EVOLUTION + "an_output_gets_columns_that_are_null_in_its_rows_and_keeps_those_it_has",
        "write to a table with another name": EVOLUTION
        + "an_output_gets_columns_that_are_null_in_its_rows_and_keeps_those_it_has",
        "keep the old ones and the kind of the sink": CHANGED_SINKS,
        "give the sink another name": CHANGED_SINKS,
    },
    "state/errors.py TableModeError": {
        "choose another name": f"{SPARK}/test_upserts.py::"
        "test_another_mode_over_existing_data_is_refused_and_both_ways_out_work",
        "reset x": f"{SPARK}/test_upserts.py::test_another_mode_over_existing_data_is_refused_and_both_ways_out_work",
    },
    "pipelines/errors.py BufferFullError": {
        "raise the limit": BUFFER,
        "shorten the windows' grace": BUFFER,
        "spill_to_disk_when_full()": BUFFER,
    },
    # Topics and records
    "pipelines/spark/errors.py OffsetsLostError": {
        "run MODULE:APP --bootstrap-servers HOST:PORT": OTHER_CLUSTER,
        "run MODULE:APP --accept-lost-records": MADE_ANEW,
        "run MODULE:APP": f"{SPARK}/test_changing_topics.py::"
        "test_a_cut_below_what_was_read_stops_a_run_and_the_next_start_reads_on_where_the_logs_part",
        "read on at offset": EXPIRED,
        "kafka create x --partitions 1": TOPICS
        + "a_topic_deleted_under_a_run_is_created_again_and_read_from_its_start",
        "reset x": MADE_ANEW,
    },
    "pipelines/spark/errors.py NoMatchingTopicError": {
        "kafka create TOPIC": PATTERNS + "topics_that_appear_are_read_without_a_restart_by_hand",
        "kafka list": PATTERNS + "topics_that_appear_are_read_without_a_restart_by_hand",
    },
    "pipelines/spark/errors.py MatchedTopicGoneError": {
        "run MODULE:APP --accept-lost-records": PATTERNS
        + "a_topic_that_is_deleted_is_refused_until_its_loss_is_accepted",
    },
    "pipelines/spark/errors.py GlobalTopicReplacedError": {
        "a new start reads it from its beginning": f"{SPARK}/test_topic_watch.py::"
        "test_the_topic_of_a_global_table_may_change_between_runs_but_not_during_one",
    },
    "infra/kafka/raw_records.py OffsetGoneError": {"run MODULE:APP": EXPIRED},
    "pipelines/spark/errors.py BadRecordError": {
        "Correct the declared schema": COMMANDS + "a_bad_record_is_read_with_a_corrected_schema",
        'on_error="dead_letter"': COMMANDS + "a_bad_record_goes_to_the_dead_letters",
    },
    "pipelines/spark/errors.py ExpectationViolatedError": {
        'on_violation="dead_letter"': f"{SPARK}/test_expectations.py::"
        "test_a_run_stops_before_a_violation_with_everything_before_it_committed",
        "Correct the expectation": f"{SPARK}/test_expectations.py::"
        "test_a_corrected_expectation_goes_on_where_it_stopped",
    },
    "pipelines/errors.py ExpectationError": {
        'on_violation="count"': f"{EXPECT}the_ways_out_of_a_violation_that_stops_the_run_work",
        "correct the expectation": f"{EXPECT}the_ways_out_of_a_violation_that_stops_the_run_work",
    },
    "pipelines/application.py Application": {
        'on_violation="drop"': f"{EXPECT}the_ways_out_for_a_store_without_a_changelog_work",
        'on_loss="empty"': f"{EXPECT}the_ways_out_for_a_store_without_a_changelog_work",
    },
    "pipelines/dsl/table_operations.py TableOperations.suppress": {
        ".suppress(...).expect(...)": f"{EXPECT}final_results_are_judged_once_and_need_no_store",
    },
    "pipelines/dsl/table_operations.py TableOperations.expect": {
        'expect(..., on_violation="drop", store="valid")': f"{EXPECT}the_ways_out_of_refusals_work",
        "builder.stream(...).expect(...).to_table(...)": f"{EXPECT}the_ways_out_of_refusals_work",
        'on_violation="drop"': f"{EXPECT}final_results_are_judged_once_and_need_no_store",
    },
    "pipelines/errors.py InvalidTimestampError": {
        'with_timestamp(..., on_invalid="skip")': "tests/pipelines/operators/test_with_timestamp.py::"
        "test_an_invalid_time_stops_the_run_and_can_be_skipped_instead",
    },
    "pipelines/errors.py BadInputError": {
        "correct the producer or the declared schema": "tests/pipelines/testing/test_driver.py::"
        "test_after_bad_input_a_corrected_producer_or_schema_is_read",
        'on_error="dead_letter"': "tests/pipelines/testing/test_driver.py::"
        "test_bad_input_stops_the_run_or_goes_to_the_dead_letters",
    },
    "pipelines/errors.py PartitionerError": {
        "partitioner=murmur2_random": PARTITIONER,
        "begin with stream.repartition(...).to_table(...)": PARTITIONER,
    },
    "infra/kafka/admin.py LoginRefusedError": {
        "correct security.protocol": SASL + "a_wrong_password_is_one_clear_error_and_the_right_one_in_weir_toml_serves_"
        "driver_and_workers",
        "WEIR_KAFKA_* variables": SASL + "a_refused_login_is_corrected_in_the_file_or_by_variables",
    },
    "infra/kafka/admin.py UnsettledOffsetsError": {
        "wait until its transaction ends": "tests/infra/test_kafka_admin.py::"
        "test_offsets_of_a_group_are_read_when_its_transaction_has_ended",
    },
    "infra/kafka/admin.py UnknownTopicError": {
        "kafka create x": COMMANDS + "topics_that_do_not_exist_are_named_and_created_together",
        "kafka list": UNKNOWN_TOPIC,
    },
    "pipelines/cli/kafka.py delete": {
        "kafka list": f"{CLI}/test_kafka.py::test_a_topic_that_does_not_exist_is_not_deleted",
    },
    "infra/kafka/admin.py BrokerUnreachableError": {
        "check that it runs and that the address is right": COMMANDS
        + "a_topic_that_does_not_exist_is_created_and_brokers_that_are_away_are_named_right",
        "or as WEIR_KAFKA_* variables": "tests/infra/test_broker_login.py::"
        "test_commands_that_name_its_address_take_the_login_from_variables",
    },
    "pipelines/errors.py CoPartitioningError._message": {
        "give them the same number of partitions": JOINED,
        "or repartition the streams": JOINED,
    },
    "pipelines/errors.py UserFunctionError": {
        "correct the function": FUNCTION,
        'on_processing_error="dead_letter"': COMMANDS + "what_fails_in_an_operator_goes_to_the_dead_letters",
    },
    "pipelines/cli/status.py _print_application": {
        "dead-letters list x": f"{LETTERS}letters_are_counted_by_reason_and_one_is_shown_with_its_trace",
    },
    "pipelines/operations/tasks.py _with_tasks": {
        "logs x": f"{CLI}/test_tasks.py::test_a_driver_that_has_no_tasks_yet_is_found_in_the_log",
        "run MODULE:APP": f"{CLI}/test_tasks.py::test_an_application_without_tasks_has_them_after_a_run",
    },
    "pipelines/operations/top.py application_activity": {
        "run MODULE:APP": f"{CLI}/test_top.py::test_an_application_that_does_not_run_is_shown_once_it_does",
    },
    "pipelines/operations/profile.py require_folder": {
        "name another folder with": f"{CLI}/test_top.py::test_a_profile_that_cannot_be_written_goes_to_another_folder",
    },
    "pipelines/cli/top.py top": {
        "tasks x": f"{CLI}/test_top.py::test_without_a_terminal_the_tasks_are_printed_once",
    },
    "pipelines/operations/assignments.py application_assignments": {
        "run MODULE:APP": f"{CLI}/test_tasks.py::test_an_application_without_assignments_has_one_after_a_run",
    },
    "pipelines/operations/dead_letters.py _replay_records": {
        "dead-letters list x": f"{LETTERS}letters_are_replayed_beside_a_driver_of_the_corrected_program_each_once",
        "dead-letters replay x": f"{LETTERS}more_letters_than_a_request_takes_wait_for_the_next_one",
    },
    "pipelines/operations/dead_letters.py _outcomes": {
        "status x": f"{LETTERS}letters_of_a_paused_application_follow_when_it_goes_on",
    },
    "pipelines/operations/dead_letters.py dead_letter": {
        "dead-letters list x": f"{LETTERS}an_unknown_id_is_found_in_the_list",
    },
    "pipelines/errors.py OperatorError": {
        "correct the expression": COMMANDS + "an_expression_is_corrected_and_a_new_start_repeats_the_epoch",
        'on_processing_error="dead_letter"': COMMANDS + "what_fails_in_an_operator_goes_to_the_dead_letters",
    },
    "pipelines/spark/errors.py TaskFailedError": {"a new start repeats this one": FUNCTION},
    # Tables, state and folders
    "pipelines/spark/errors.py RestoreFailedError": {
        "a new start restores it again": f"{SPARK}/test_trouble.py::"
        "test_a_restore_that_fails_stops_the_run_with_the_task_and_the_reason",
    },
    "pipelines/spark/errors.py RangeLostError": {
        'declare the store with on_loss="empty"': f"{SPARK}/test_rebuilt_stores.py::"
        "test_when_retention_has_passed_the_range_the_run_stops_until_the_store_may_begin_empty",
    },
    "pipelines/spark/assignors.py AssignorError": {
        "correct it, or set assignor to": f"{SPARK}/test_assignors.py::"
        "test_a_class_that_is_no_assignor_is_refused_and_another_one_or_a_corrected_one_is_taken",
    },
    "pipelines/spark/errors.py CompactedTopicError": {
        'add on_loss="empty" to the store': SOURCES + "a_store_that_counts_records_of_a_compacted_topic_is_refused",
        "leave logging=False out": SOURCES + "a_store_that_counts_records_of_a_compacted_topic_is_refused",
    },
    "pipelines/spark/errors.py ReplayRefusedError": {
        'declare the store with on_loss="empty"': SOURCES
        + "letters_are_replayed_only_into_stores_that_keep_them_if_they_are_lost",
        "leave logging=False out": SOURCES + "letters_are_replayed_only_into_stores_that_keep_them_if_they_are_lost",
    },
    "pipelines/spark/errors.py UnloggedStoreLostError": {
        'logging=False, on_loss="empty" again': f"{SPARK}/test_unlogged_stores.py::"
        "test_a_store_that_is_lost_before_its_new_changelog_has_its_rows_stops_the_run",
    },
    "pipelines/spark/errors.py CommitOutOfSpaceError": {
        "free some space there and start it again": f"{SPARK}/test_full_disks.py::"
        "test_a_stop_ends_the_wait_and_the_next_run_goes_on",
    },
    "pipelines/spark/errors.py CommitLogLostError": {
        "put the application's warehouse folder back": LOST,
        "reset x": LOST_WAREHOUSE,
    },
    "state/errors.py DamagedFileError": {
        "put it back from a backup": "tests/state/commit/test_damage.py::"
        "test_the_file_is_named_and_put_back_the_run_goes_on",
    },
    "state/errors.py TableFileError": {
        "put it back from a backup": TABLES + "a_file_that_an_output_has_lost_is_put_back_or_the_application_is_reset",
        "reset x": TABLES + "a_file_that_an_output_has_lost_is_put_back_or_the_application_is_reset",
    },
    "state/errors.py DeltaLogGoneError": {
        "put the application's whole warehouse folder back": TABLES
        + "a_commit_log_that_is_gone_under_a_run_is_put_back_or_the_application_is_reset",
        "reset x": TABLES + "a_commit_log_that_is_gone_under_a_run_is_put_back_or_the_application_is_reset",
    },
    "state/errors.py TableBehindError": {"restore the file from a backup": LOST, "reset x": LOST},
    "state/errors.py TableLostError": {"restore the table's folder from a backup": LOST, "reset x": LOST},
    "state/errors.py TableAheadError": {"put the application's whole warehouse folder back": LOST, "reset x": LOST},
    "state/errors.py FormatVersionError": {"run the version that wrote it": FORMAT, "reset x": FORMAT},
    "state/errors.py DiskFullError": {
        "free some space": "tests/pipelines/tasks/test_epoch.py::"
        "test_a_disk_that_fills_while_files_are_written_is_waited_for",
    },
    "state/errors.py ConditionalPutError": {
        "use a store that does": "tests/state/storage/test_object_store.py::"
        "test_a_store_that_refuses_a_second_put_is_taken_and_nothing_is_left_there",
        "or a folder of a local disk": f"{CLI}/test_object_store.py::"
        "test_a_store_that_lets_a_second_writer_win_is_refused_at_the_start_and_a_local_disk_is_taken",
    },
    "state/errors.py ObjectStoreAwayError": {
        "check the network": "tests/pipelines/spark/test_object_store.py::"
        "test_a_store_that_goes_away_is_waited_for_and_named_in_the_status",
    },
    "state/errors.py ObjectStoreError": {
        "check the bucket": f"{CLI}/test_object_store.py::"
        "test_a_bucket_that_is_not_there_is_named_and_with_the_right_one_it_runs",
    },
    "state/errors.py AppendOnlyError": {
        "set that property to false": "tests/state/changelog/test_append_only.py::"
        "test_a_table_of_upserts_is_refused_at_the_claim_and_at_a_refresh",
    },
    "pipelines/operations/compaction.py append_only_sentence": {
        "set that property to false": f"{CLI}/test_compact.py::"
        "test_tables_that_are_append_only_keep_their_files_and_their_rows_go_once_they_are_not",
    },
    "state/errors.py UpsertsBusyError": {
        "stop what writes to it": "tests/state/changelog/test_upserts.py::"
        "test_others_that_keep_writing_are_named_after_a_few_attempts",
    },
    "state/errors.py NetworkFileSystemError": {
        "--dir DIR": f"{CLI}/test_unwritable.py::"
        "test_state_on_a_network_file_system_is_refused_and_put_on_a_local_disk",
    },
    "state/errors.py RowFormatError": {
        "run MODULE:APP": OTHER_ROWS,
        "read them with the one that ran last": OTHER_ROWS,
    },
    "state/errors.py EpochLimitError": {
        "reset x": TABLES + "when_the_numbers_of_epochs_are_used_up_the_application_is_reset",
    },
    "state/errors.py TableFeatureError": {"copy the table": FEATURE, "reset x": FEATURE},
    "state/errors.py TransactionClosedError": {
        "begin a new one with TaskStore.session()": "tests/state/engine/test_task_store.py::"
        "test_unknown_stores_and_ended_sessions_are_named_and_a_new_one_reads_on",
    },
    "state/errors.py PositionsFileError": {
        "restore the file from a copy": POSITIONS,
        "remove it": POSITIONS,
    },
    "state/errors.py DeletionsGoneError": {
        "clear the store and its offset": "tests/state/changelog/test_following.py::"
        "test_a_store_that_was_away_while_deletions_were_dropped_is_told_to_start_over",
    },
    "state/errors.py HistoryGoneError": {
        "or later": "tests/state/changelog/test_as_of.py::"
        "test_each_commit_has_its_state_until_compaction_merges_it_with_newer_ones",
    },
    "state/changelog/verify.py StateDifferenceError": {
        "restore x x --from-changelog": COMMANDS + "a_store_that_differs_from_its_changelog_is_restored_from_it",
    },
    "pipelines/operations/quarantine.py _way_out": {
        "compact x": f"{CLI}/test_quarantine.py::test_beyond_its_limit_the_way_out_is_named_and_works",
    },
    "pipelines/cli/options.py require_writable": {
        "--dir DIR": f"{CLI}/test_unwritable.py::test_the_other_ways_out_work",
        "the variable WEIR_DIR": f"{CLI}/test_unwritable.py::test_the_other_ways_out_work",
    },
    # What runs, and what does not
    "infra/control/database.py LeaseHeldError": {
        "stop x": COMMANDS + "a_lease_that_is_held_ends_with_a_stop",
        "run MODULE:APP --take-over": COMMANDS + "a_lease_that_is_held_is_taken_over",
    },
    "infra/control/database.py ControlDatabase._are_tables_there": {
        "point control_url at a new one": "tests/infra/test_control_database.py::"
        "test_another_format_version_is_refused_with_the_way_out",
        "drop its weir_ tables": "tests/infra/test_control_database.py::"
        "test_another_format_version_is_refused_with_the_way_out",
    },
    "pipelines/operations/control.py ask": {
        "run MODULE:APP": COMMANDS + "what_needs_a_driver_is_done_once_one_runs",
        "logs x` says why": COMMANDS + "the_log_says_why_a_driver_ended_before_it_answered",
        "logs x": COMMANDS + "the_log_shows_what_a_driver_did_last_that_does_not_answer",
    },
    "pipelines/operations/control.py wait_for_end": {
        "logs x": COMMANDS + "the_log_shows_what_a_driver_did_last_that_is_still_stopping",
    },
    "pipelines/state_reader.py StateReader._without_state": {
        "run MODULE:APP": COMMANDS + "state_that_is_not_on_this_host_is_restored_by_a_run",
    },
    "pipelines/state_reader.py StateReader._ask": {
        "status": COMMANDS + "a_position_that_is_not_reached_is_reached_by_an_application_that_status_shows_as_stopped",
        "wait longer": "tests/pipelines/test_state_reader.py::"
        "test_a_query_waits_for_a_position_or_says_why_it_is_not_reached",
    },
    "pipelines/state_reader.py _nobody_answers": {
        "try again in a moment": QUERIES + "a_task_that_is_being_restored_is_waited_for",
        "--allow-stale": QUERIES + "standbys_answer_with_their_position_where_that_is_allowed",
        "Query(allow_stale=True)": QUERIES + "standbys_answer_with_their_position_where_that_is_allowed",
    },
    "pipelines/queries/cluster.py Cluster.locations": {
        "try again once it answers": QUERIES + "a_control_database_that_does_not_answer_is_named",
    },
    "pipelines/operations/registry.py require": {
        "run MODULE:APP": COMMANDS + "where_nothing_has_run_an_application_is_run_or_another_folder_named",
        "--dir DIR": COMMANDS + "where_nothing_has_run_an_application_is_run_or_another_folder_named",
        "demo": DEMO,
    },
    "pipelines/operations/registry.py _registration": {
        "run MODULE:APP": COMMANDS + "a_program_that_is_not_registered_is_started_once",
    },
    "pipelines/cli/options.py refuse_secrets": {
        "weir.toml x": f"{CLI}/test_secrets.py::test_a_secret_is_taken_from_the_file_where_the_message_says",
        "or set x": f"{CLI}/test_secrets.py::test_a_secret_is_taken_from_the_variable_that_the_message_names",
    },
    "pipelines/operations/registry.py _require_own": {
        "run MODULE:APP": REGISTRY + "an_entry_of_another_user_is_taken_over_or_replaced_by_a_run_of_ones_own",
        "`chown x x`": REGISTRY + "an_entry_of_another_user_is_taken_over_or_replaced_by_a_run_of_ones_own",
        "`chmod go-w x`": REGISTRY + "a_program_that_others_could_have_named_is_not_imported_until_only_the_user_can",
    },
    "pipelines/operations/aside.py _newest": {"run MODULE:APP": NEEDS_A_COMMIT},
    "pipelines/operations/compaction.py compact_application": {"run MODULE:APP": NEEDS_A_COMMIT},
    "pipelines/operations/sql.py opened_sql": {
        "show x TABLE": f"{CLI}/test_object_store.py::test_where_spark_does_not_read_sql_says_what_to_use_instead",
        "run MODULE:APP": f"{SPARK}/test_sql.py::test_before_the_first_commit_there_is_nothing_to_ask",
    },
    "pipelines/spark/merging.py SparkMergeError": {
        "compact x --engine process": f"{SPARK}/test_merging.py::test_without_a_spark_that_starts_the_process_merges",
    },
    "pipelines/spark/sql.py SqlSession.run": {
        "--set spark.driver.memory=4g": f"{SPARK}/test_sql.py::"
        "test_the_prompt_takes_statements_over_lines_and_ends_when_java_does",
    },
    "pipelines/cli/sql.py _print": {
        "--limit 0 prints all": f"{SPARK}/test_sql.py::"
        "test_of_many_rows_the_first_are_printed_and_the_way_to_all_of_them_is_named",
    },
    "pipelines/operations/migration.py _newest": {"run MODULE:APP": NEEDS_A_COMMIT},
    "pipelines/backfill/ranges.py committed": {"run MODULE:APP": NEEDS_A_COMMIT},
    "infra/jars.py _command": {
        "setup": "tests/infra/test_jars.py::"
        "test_a_set_that_could_not_be_fetched_is_fetched_by_the_same_command_when_the_network_is_back"
    },
    "infra/java.py MissingJavaError": {
        "headless JDK 17 or newer": "tests/infra/test_jars.py::"
        "test_a_java_that_is_installed_is_found_on_the_path_or_in_java_home",
    },
    "pipelines/cli/dagster_ui.py free_port": {
        "demo --no-ui": f"{CLI}/test_demo.py::test_without_a_free_port_the_results_are_shown_without_the_ui",
    },
    "pipelines/cli/dagster_ui.py _wait_until_up": {
        "demo --no-ui": f"{CLI}/test_demo.py::"
        "test_if_the_ui_does_not_start_its_log_says_why_and_the_results_are_shown_without_it",
    },
    "infra/prometheus.py PrometheusEndpoint": {
        "choose another --metrics-port": PORT,
        "or leave it out": PORT,
    },
    # Backfills
    "pipelines/backfill/errors.py NoDayOutputsError": {
        "backfill run x --everything": BACKFILLS + "running_totals_are_computed_with_everything",
    },
    "pipelines/backfill/errors.py HistoryLostError": {
        "choose later days": BACKFILLS + "days_whose_margin_has_expired_are_computed_with_a_smaller_one_or_later_ones",
        "backfill run x FIRST END --margin-hours 1": BACKFILLS
        + "days_whose_margin_has_expired_are_computed_with_a_smaller_one_or_later_ones",
    },
    "pipelines/backfill/errors.py BeginningLostError": {
        "backfill days that are still there": BACKFILLS
        + "without_the_beginning_days_are_computed_or_another_id_runs_over_what_is_left",
        "another id": BACKFILLS + "without_the_beginning_days_are_computed_or_another_id_runs_over_what_is_left",
    },
    "pipelines/backfill/errors.py TopicReplacedError": {
        "backfill run x FIRST END --from TOPIC=PATH": BACKFILLS
        + "records_of_a_topic_made_anew_are_read_from_files_or_from_the_brokers_that_have_them",
        "backfill run x FIRST END --bootstrap-servers HOST:PORT": BACKFILLS
        + "records_of_a_topic_made_anew_are_read_from_files_or_from_the_brokers_that_have_them",
    },
    "pipelines/backfill/errors.py SourceFilesError": {
        "name a Delta table's folder, or Parquet files": BACKFILLS
        + "files_with_the_columns_of_the_topic_and_a_time_are_read",
    },
    "pipelines/backfill/errors.py OpenWindowsError": {
        "choose earlier days": BACKFILLS + "days_with_open_windows_are_read_from_kafka_and_earlier_ones_from_files",
        "backfill from Kafka": BACKFILLS + "days_with_open_windows_are_read_from_kafka_and_earlier_ones_from_files",
    },
    "pipelines/backfill/errors.py UnknownBackfillError": {"backfill list x": UNKNOWN_BACKFILL},
    "pipelines/backfill/errors.py LargeChangeError": {
        "backfill swap x x --yes": LARGE_CHANGE,
        "--max-change SHARE": LARGE_CHANGE,
        "backfill discard x x": LARGE_CHANGE,
    },
    "pipelines/backfill/ranges.py cut_of": {
        "run MODULE:APP": BACKFILLS + "a_program_with_another_topic_is_run_before_its_days_are_computed",
    },
    "pipelines/backfill/ranges.py settled": {
        "stop x --drain": DRAINED,
        "status x": DRAINED,
        "run OLD_MODULE:APP --until-caught-up": CHANGED
        + "rows_on_their_way_are_processed_before_everything_is_swapped_in",
    },
    "pipelines/backfill/swap.py prepare": {
        "backfill swap MODULE:APP x --publish": BACKFILLS
        + "a_backfill_of_rows_for_sinks_alone_is_published_when_it_is_swapped",
    },
    "pipelines/backfill/swap.py read_prepared": {
        "backfill list x": BACKFILLS + "a_backfill_that_is_discarded_while_it_is_swapped_in_is_missing_from_the_list",
    },
    "pipelines/cli/backfill.py discard": {
        "backfill list x": BACKFILLS + "a_backfill_to_be_discarded_is_found_in_the_list",
    },
    "pipelines/backfill/errors.py UnloggedStoreError": {
        "backfill the program with logging=True for it": f"{SPARK}/test_unlogged_stores.py::"
        "test_a_backfill_of_everything_is_refused_and_then_made_with_changelogs",
    },
    "pipelines/backfill/everything.py require_all_arrived": {
        "run OLD_MODULE:APP --until-caught-up": CHANGED
        + "rows_on_their_way_are_processed_before_everything_is_swapped_in",
    },
    "pipelines/operations/backfill.py swap_in": {
        "stop x --drain": BACKFILLS + "everything_is_swapped_in_after_a_stop_that_drains",
    },
    "pipelines/cli/inspect.py logs": {"run MODULE:APP": COMMANDS + "a_log_that_is_missing_is_written_by_a_run"},
    "pipelines/cli/backfill.py run": {"backfill swap x x": COMPUTED},
    # Migrations
    "pipelines/migrate/kafka_streams_return.py KafkaStreamsReturn.plan": {
        "run MODULE:APP --until-caught-up": CHANGED
        + "rows_on_their_way_are_processed_before_a_return_to_kafka_streams",
    },
    "pipelines/migrate/errors.py OffsetFileError": {
        "copy the file again from a cleanly stopped application": "tests/pipelines/migrate/"
        "test_kafka_streams_files.py::test_a_file_that_was_copied_while_it_was_written_is_copied_again",
    },
    "pipelines/operations/package.py packaged": {
        "--output x.tar.gz": PACKAGE + "a_name_that_spark_does_not_unpack_is_refused_before_anything_is_packed",
    },
    "pipelines/spark/program.py OtherModuleError": {
        "package x": "tests/cluster/test_package.py::test_a_program_runs_from_its_archive_and_not_from_that_of_another",
    },
    "pipelines/migrate/migration.py Migration.is_written": {
        "reset x": "tests/pipelines/migrate/test_migration.py::"
        "test_the_same_migration_changes_nothing_the_second_time_and_another_is_refused",
    },
}

NOT_RUN: dict[str, dict[str, str]] = {
    "infra/java.py MissingJavaError": {
        "apt-get install openjdk-17-jdk-headless": "installs a package of the system, as its administrator",
    },
    "pipelines/spark/program.py OtherModuleError": {
        "install the same program on all hosts": "is done on the hosts of a cluster",
    },
    "pipelines/spark/worker.py OtherVersionError": {
        "install the same version on all hosts": "is done on the hosts of a cluster",
    },
    "state/engine/shared_rows.py SharedRowsFullError": {"join a table instead": "would need 64 GiB of rows"},
}
"""What messages of refusals offer and no test runs from there, with the reason."""

NO_WAYS_OUT = {
    "pipelines/spark/task_state.py IllegalTransitionError",
    "pipelines/assignment/checks.py InvalidAssignmentError",
    "pipelines/spark/errors.py StateInDoubtError",
    "pipelines/spark/errors.py UnconfirmedReadsError",
    "pipelines/operations/doubts.py InDoubtError",
    "pipelines/spark/slots.py WorkerStartError",
    "pipelines/publishing/sql_address.py SinkAddressError",
    "pipelines/publishing/sql_table.py SinkTableError",
    "state/errors.py TableReplacedError",
    "infra/jars.py JarsError",
    "infra/spark/session.py SparkStartError",
    "infra/spark/standalone.py ClusterStartError",
    "infra/spark/executors.py NoExecutorError",
    "infra/kafka/broker.py BrokerStartError",
    "pipelines/backfill/errors.py NoCutError",
    "pipelines/errors.py TopologyError",
    "pipelines/repartitioning/errors.py RepartitionError",
    "pipelines/tasks/rebuilding.py RebuildError",
    "pipelines/migrate/errors.py NotMovedError",
    "state/changelog/snapshot.py SnapshotError",
    "state/errors.py FencedError",
    "state/errors.py FencedStoreError",
    "state/errors.py MapFullError",
    "state/errors.py OwnStoreBehindError",
    "state/errors.py OwnStoreError",
    "state/errors.py SwapRefusedError",
    "state/errors.py TaskCorruptedError",
    "state/errors.py UnknownStoreError",
}
"""Errors that Weir itself gets over, and those whose reason, worded where they are raised, has the way out."""

NO_REFUSALS = {
    "pipelines/cli/sink.py",
    "pipelines/cli/backfill.py",
    "pipelines/cli/control.py restore",
    "pipelines/cli/demo.py _show_flights",
    "pipelines/cli/demo_customers.py deliver",
    "pipelines/cli/kafka.py start",
    "pipelines/cli/kafka.py list_topics",
    "pipelines/cli/package.py package",
    "pipelines/cli/plan.py plan",
    "pipelines/cli/query.py query",
    "pipelines/cli/repartition.py repartition",
    "pipelines/cli/run.py run",
    "pipelines/cli/setup.py setup",
    "pipelines/cli/status.py status",
}
"""Help texts, and what a command says when nothing is wrong."""
