/* Records of one topic partition as columns: a consume callback of librdkafka appends to them, and Arrow's C data
 * interface hands them over without a copy (arrow.apache.org/docs/format/CDataInterface.html).
 *
 * Plain C without Python.h: infra/kafka/columns.py calls it through ctypes, which releases the interpreter's lock, and
 * passes it librdkafka's functions, so that nothing is linked. Columns are not to be used by several threads; what Arrow
 * holds may be released by any.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 16, KEPT_LEAST = 1 << 18, KEPT_BYTES = 128 << 20, KEPT_FIT = 4 };
enum { FIRST_ROWS = 1024, FIRST_BYTES = 1 << 16, ERROR_TEXT = 512, BUFFERS = 3, NUMBERS = 4, PARTITION_EOF = -191 };

struct message { /* rd_kafka_message_t, as rdkafka.h declares it */
    int32_t error;
    void *topic;
    int32_t partition;
    void *payload;
    size_t length;
    void *key;
    size_t key_length;
    int64_t offset;
    void *private_data;
};

struct buffer {
    char *at;
    size_t used, size;
    size_t before; /* used when it was last handed over: it may become as large again */
};

struct bytes_column { /* Arrow's large binary */
    struct buffer validity, ends, data;
    int64_t nulls;
};

struct columns {
    /* Set by the caller; columns.py declares the fields down to error_text. */
    int64_t end;       /* stop after the last record before this offset, */
    int64_t until_ms;  /* after the first one later than this time, */
    int64_t max_bytes; /* or once keys, values and headers reach this many bytes */
    /* What was found. */
    int64_t rows, bytes, next_offset;
    int64_t headers; /* of all rows together */
    int32_t is_complete; /* one of the three bounds was reached */
    int32_t is_out_of_memory;
    int32_t error; /* met after the rows; the columns stop there, too, except for PARTITION_EOF */
    int64_t error_offset;
    char error_text[ERROR_TEXT];

    struct buffer offsets, timestamps;
    struct bytes_column keys, values;
    struct buffer header_ends; /* of each row's headers among those of all */
    struct bytes_column header_names, header_values;
    int32_t (*headers_of)(const struct message *, void **); /* NULL if headers are not asked for */
    int32_t (*header_at)(const void *, size_t, const char **, const void **, size_t *);
    int64_t (*timestamp_of)(const struct message *, int32_t *);
    void (*yield)(void *client);
    void *client;
};

/* Large buffers that were released, the oldest first. Memory from the system costs a page fault for each 4 kB, which
 * takes longer than to fill it (docs/adr/0018). */
static struct {
    atomic_flag is_locked;
    int count;
    size_t bytes;
    struct { char *at; size_t size; } buffers[KEPT];
} kept = {.is_locked = ATOMIC_FLAG_INIT};

static void lock(void)
{
    while (atomic_flag_test_and_set_explicit(&kept.is_locked, memory_order_acquire)) {}
}

static void unlock(void)
{
    atomic_flag_clear_explicit(&kept.is_locked, memory_order_release);
}

static char *remove_kept(int which)
{
    char *at = kept.buffers[which].at;
    kept.bytes -= kept.buffers[which].size;
    kept.count--;
    memmove(&kept.buffers[which], &kept.buffers[which + 1], (size_t)(kept.count - which) * sizeof kept.buffers[0]);
    return at;
}

/* The smallest one that holds `*size` bytes and is not much larger, or NULL; `*size` becomes its size. */
static char *take_kept(size_t *size)
{
    int best = -1;
    char *at = NULL;
    lock();
    for (int each = 0; each < kept.count; each++) {
        size_t found = kept.buffers[each].size;
        if (found >= *size && found <= *size * KEPT_FIT && (best < 0 || found < kept.buffers[best].size)) best = each;
    }
    if (best >= 0) {
        *size = kept.buffers[best].size;
        at = remove_kept(best);
    }
    unlock();
    return at;
}

/* Keep a buffer, in place of the oldest ones where they would be too many, or free it. */
static void give_back(char *at, size_t size)
{
    if (size < KEPT_LEAST || size > KEPT_BYTES) {
        free(at);
        return;
    }
    lock();
    while (kept.count == KEPT || kept.bytes + size > KEPT_BYTES) free(remove_kept(0));
    kept.buffers[kept.count].at = at;
    kept.buffers[kept.count++].size = size;
    kept.bytes += size;
    unlock();
}

/* Free what is kept. */
void columns_forget(void)
{
    lock();
    while (kept.count) free(remove_kept(0));
    unlock();
}

/* How many bytes are kept. */
size_t columns_kept(void)
{
    lock();
    size_t bytes = kept.bytes;
    unlock();
    return bytes;
}

static bool grow(struct buffer *buffer, size_t more, size_t first)
{
    size_t size = buffer->size ? buffer->size : first;
    while (size - buffer->used < more) size *= 2;
    char *at = NULL;
    if (size >= KEPT_LEAST) {
        if (size < buffer->before) size = buffer->before;
        at = take_kept(&size);
    }
    if (at != NULL) {
        if (buffer->used) memcpy(at, buffer->at, buffer->used);
        give_back(buffer->at, buffer->size);
    } else {
        at = realloc(buffer->at, size);
    }
    if (at == NULL) return false;
    buffer->at = at;
    buffer->size = size;
    return true;
}

static inline bool reserve(struct buffer *buffer, size_t more, size_t first)
{
    return more <= buffer->size - buffer->used || grow(buffer, more, first);
}

static bool append_number(struct buffer *buffer, int64_t number)
{
    if (!reserve(buffer, sizeof number, FIRST_ROWS * sizeof number)) return false;
    memcpy(buffer->at + buffer->used, &number, sizeof number);
    buffer->used += sizeof number;
    return true;
}

static bool append_bytes(struct bytes_column *column, int64_t row, const void *bytes, size_t length)
{
    if (row % 8 == 0) {
        if (!reserve(&column->validity, 1, FIRST_ROWS / 8)) return false;
        column->validity.at[column->validity.used++] = 0;
    }
    if (row == 0 && !(append_number(&column->ends, 0) && reserve(&column->data, 1, FIRST_BYTES))) return false;
    if (bytes == NULL) {
        column->nulls++;
    } else {
        if (!reserve(&column->data, length, FIRST_BYTES)) return false;
        memcpy(column->data.at + column->data.used, bytes, length);
        column->data.used += length;
        column->validity.at[row / 8] |= (char)(1 << (row % 8));
    }
    return append_number(&column->ends, (int64_t)column->data.used);
}

static void release(struct buffer *buffer)
{
    give_back(buffer->at, buffer->size);
    *buffer = (struct buffer){.before = buffer->before};
}

static void release_bytes(struct bytes_column *column)
{
    release(&column->validity);
    release(&column->ends);
    release(&column->data);
    column->nulls = 0;
}

/* `headers_of` and `header_at` are rd_kafka_message_headers and rd_kafka_header_get_all, or NULL for no headers. */
struct columns *columns_new(void *timestamp_of, void *yield, void *client, void *headers_of, void *header_at)
{
    struct columns *columns = calloc(1, sizeof *columns);
    if (columns == NULL) return NULL;
    *(void **)&columns->timestamp_of = timestamp_of;
    *(void **)&columns->yield = yield;
    *(void **)&columns->headers_of = headers_of;
    *(void **)&columns->header_at = header_at;
    columns->client = client;
    return columns;
}

/* Discard all rows, and continue at `start`. */
void columns_clear(struct columns *columns, int64_t start)
{
    release(&columns->offsets);
    release(&columns->timestamps);
    release_bytes(&columns->keys);
    release_bytes(&columns->values);
    release(&columns->header_ends);
    release_bytes(&columns->header_names);
    release_bytes(&columns->header_values);
    columns->rows = columns->bytes = columns->headers = 0;
    columns->next_offset = start;
    columns->is_complete = columns->is_out_of_memory = columns->error = 0;
}

void columns_free(struct columns *columns)
{
    columns_clear(columns, 0);
    free(columns);
}

/* Append a record's headers, in order; false if there is no memory for them. */
static bool append_headers(struct columns *columns, const struct message *message)
{
    void *headers;
    if (columns->headers_of == NULL) return true;
    if (columns->rows == 0 && !append_number(&columns->header_ends, 0)) return false;
    if (columns->headers_of(message, &headers) == 0) {
        const char *name;
        const void *value;
        size_t length;
        for (size_t each = 0; columns->header_at(headers, each, &name, &value, &length) == 0; each++) {
            size_t name_length = strlen(name);
            if (!(append_bytes(&columns->header_names, columns->headers, name, name_length)
                  && append_bytes(&columns->header_values, columns->headers, value, length)))
                return false;
            columns->headers++;
            columns->bytes += (int64_t)(name_length + length);
        }
    }
    return append_number(&columns->header_ends, columns->headers);
}

/* The callback for rd_kafka_consume_callback. After yielding, later records stay in librdkafka's queue. Whenever the
 * consumer reaches the partition's end, an error is queued; if records follow it, the end has moved on. */
void columns_take(const struct message *message, void *opaque)
{
    struct columns *columns = opaque;
    if (message->error) {
        size_t length = message->payload == NULL ? 0 : message->length;
        if (length >= ERROR_TEXT) length = ERROR_TEXT - 1;
        if (length) memcpy(columns->error_text, message->payload, length);
        columns->error_text[length] = '\0';
        columns->error = message->error;
        columns->error_offset = message->offset;
        if (message->error != PARTITION_EOF) columns->yield(columns->client);
        return;
    }
    if (message->offset < columns->next_offset) return; /* fetched before a seek */
    int32_t kind;
    int64_t row = columns->rows, timestamp = columns->timestamp_of(message, &kind);
    if (!(append_number(&columns->offsets, message->offset) && append_number(&columns->timestamps, timestamp)
          && append_bytes(&columns->keys, row, message->key, message->key_length)
          && append_bytes(&columns->values, row, message->payload, message->length)
          && append_headers(columns, message))) {
        columns->is_out_of_memory = 1;
        columns->yield(columns->client);
        return;
    }
    columns->rows++;
    columns->error = 0;
    columns->bytes += (int64_t)(message->key_length + message->length);
    columns->next_offset = message->offset + 1;
    if (columns->next_offset >= columns->end || timestamp > columns->until_ms || columns->bytes >= columns->max_bytes) {
        columns->is_complete = 1;
        columns->yield(columns->client);
    }
}

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

static void release_schema(struct ArrowSchema *schema)
{
    schema->release = NULL;
}

struct exported { /* what an array's private_data is */
    const void *buffers[BUFFERS];
    size_t sizes[BUFFERS];
};

static void release_array(struct ArrowArray *array)
{
    struct exported *exported = array->private_data;
    for (int each = 0; each < BUFFERS; each++) give_back((char *)exported->buffers[each], exported->sizes[each]);
    free(exported);
    array->release = NULL;
}

static void move(struct buffer *buffer, struct exported *exported, int which)
{
    exported->buffers[which] = buffer->at;
    exported->sizes[which] = buffer->size;
    *buffer = (struct buffer){.before = buffer->used};
}

/* Move column `which` to Arrow structures; 0 if there is no memory for them. 0 key, 1 value, 2 names and 3 values of the
 * headers of all rows; 4 timestamp, 5 offset, 6 where each row's headers end, after a 0. */
int32_t columns_export(struct columns *columns, int32_t which, struct ArrowSchema *schema, struct ArrowArray *array)
{
    struct bytes_column *of_bytes[] = {&columns->keys, &columns->values, &columns->header_names,
                                       &columns->header_values};
    struct buffer *of_numbers[] = {&columns->timestamps, &columns->offsets, &columns->header_ends};
    const bool is_bytes = which < NUMBERS;
    struct exported *exported = calloc(1, sizeof *exported);
    if (exported == NULL) return 0;
    *schema = (struct ArrowSchema){.format = is_bytes ? "Z" : "l", .name = "", .flags = 2, .release = release_schema};
    *array = (struct ArrowArray){.n_buffers = is_bytes ? BUFFERS : 2, .buffers = exported->buffers,
                                 .release = release_array, .private_data = exported};
    if (is_bytes) {
        struct bytes_column *column = of_bytes[which];
        array->length = which < 2 ? columns->rows : columns->headers;
        array->null_count = column->nulls;
        move(&column->validity, exported, 0);
        move(&column->ends, exported, 1);
        move(&column->data, exported, 2);
    } else {
        struct buffer *column = of_numbers[which - NUMBERS];
        array->length = (int64_t)(column->used / sizeof(int64_t));
        move(column, exported, 1);
    }
    return 1;
}
