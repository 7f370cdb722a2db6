/* Records handed to librdkafka's producer from columns. Plain C without Python.h: infra/kafka/producer.py calls it through
 * ctypes, which releases the interpreter's lock, and passes it librdkafka's functions, so that nothing is linked.
 */
#include <stddef.h>
#include <stdint.h>

/* rd_kafka_vtype_t and the flag that has librdkafka copy what it is given, as rdkafka.h declares them. */
enum { END, TOPIC, RKT, PARTITION, VALUE, KEY, OPAQUE, MSGFLAGS, TIMESTAMP, HEADER, HEADERS, COPY = 2 };
enum { FAILURES = 64 };

struct message { /* the beginning of rd_kafka_message_t */
    int32_t error;
};

struct failures { /* of messages that were not delivered: the errors of the first ones */
    int32_t count;
    int32_t errors[FAILURES];
};

struct bytes { /* values one after another, with their lengths; -1 for null */
    const char *data;
    const int64_t *lengths;
};

struct outgoing { /* producer.py declares the fields */
    int64_t rows;
    const char *const *topics;
    const int32_t *topic; /* of each row, its place among the topics */
    const int32_t *partition;
    const int64_t *time_ms;
    struct bytes key, value;
    const int64_t *headers; /* how many each row has; NULL if none has any */
    struct bytes header_name, header_value; /* of all headers, in order */
    int32_t (*producev)(void *client, ...);
    void *(*headers_new)(size_t);
    int32_t (*header_add)(void *, const char *, ptrdiff_t, const void *, ptrdiff_t);
    void (*headers_destroy)(void *);
    /* How far it has come. */
    int64_t next_row, next_header;
};

static const char *take(struct bytes *bytes, int64_t at, size_t *length)
{
    int64_t found = bytes->lengths[at];
    *length = found < 0 ? 0 : (size_t)found;
    return found < 0 ? NULL : bytes->data;
}

/* The callback for rd_kafka_conf_set_dr_msg_cb. */
void outgoing_failed(void *client, const struct message *message, void *opaque)
{
    struct failures *failures = opaque;
    (void)client;
    if (message->error && failures->count < FAILURES) failures->errors[failures->count++] = message->error;
}

/* Give the rows to the producer; librdkafka's error at the first that it does not take, where the next call begins. */
int32_t outgoing_produce(struct outgoing *rows, void *client)
{
    for (; rows->next_row < rows->rows; rows->next_row++) {
        int64_t row = rows->next_row, first_header = rows->next_header;
        struct bytes name = rows->header_name, value = rows->header_value;
        void *headers = NULL;
        size_t key_length, value_length;
        const char *key = take(&rows->key, row, &key_length), *payload = take(&rows->value, row, &value_length);
        int64_t count = rows->headers == NULL ? 0 : rows->headers[row];
        if (count) headers = rows->headers_new((size_t)count);
        for (int64_t each = 0; each < count; each++) {
            size_t name_length, length;
            const char *named = take(&name, first_header + each, &name_length);
            const char *held = take(&value, first_header + each, &length);
            rows->header_add(headers, named, (ptrdiff_t)name_length, held, (ptrdiff_t)length);
            name.data += name_length;
            value.data += length;
        }
        const char *topic = rows->topics[rows->topic[row]];
        int32_t error =
            headers == NULL
                ? rows->producev(client, TOPIC, topic, PARTITION, rows->partition[row], MSGFLAGS, (int)COPY, KEY, key,
                                 key_length, VALUE, payload, value_length, TIMESTAMP, rows->time_ms[row], END)
                : rows->producev(client, TOPIC, topic, PARTITION, rows->partition[row], MSGFLAGS, (int)COPY, KEY, key,
                                 key_length, VALUE, payload, value_length, TIMESTAMP, rows->time_ms[row], HEADERS,
                                 headers, END);
        if (error) {
            if (headers != NULL) rows->headers_destroy(headers); /* the producer owns those of rows that it takes */
            return error;
        }
        rows->key.data += key_length;
        rows->value.data += value_length;
        rows->header_name = name;
        rows->header_value = value;
        rows->next_header += count;
    }
    return 0;
}
