/* infra/kafka/_columns.c against a plain list of records: bounds, errors, seeks, headers, and memory that runs out. */
#include "input.h"

static int allocations_left; /* until one fails; negative for never */

static int fails(void)
{
    return allocations_left >= 0 && allocations_left-- == 0;
}

static void *some_realloc(void *at, size_t size)
{
    return fails() ? NULL : realloc(at, size);
}

static void *some_calloc(size_t count, size_t size)
{
    return fails() ? NULL : calloc(count, size);
}

#define realloc some_realloc
#define calloc some_calloc
#include "../../infra/kafka/_columns.c"
#undef realloc
#undef calloc

enum { MOST_RECORDS = 2000, MOST_HEADERS = 4, MOST_COPIED = 100, NULL_BYTES = 255, FIRST_LARGE = 251 };

/* Around the longest text of an error, and much more than the first buffer. */
static const size_t large[] = {ERROR_TEXT - 1, ERROR_TEXT, ERROR_TEXT + 1, 5 * FIRST_BYTES};

struct text {
    char *at; /* NULL for null */
    size_t length;
};

struct record {
    struct message message; /* private_data is the record */
    int64_t timestamp;
    int is_copy; /* of the record before it, to which its bytes belong */
    size_t headers;
    struct text names[MOST_HEADERS], values[MOST_HEADERS];
};

static struct record records[MOST_RECORDS];
static int stops;

static int32_t headers_of(const struct message *message, void **headers)
{
    struct record *record = message->private_data;
    *headers = record;
    return record->headers ? 0 : -156; /* RD_KAFKA_RESP_ERR__NOENT */
}

static int32_t header_at(const void *headers, size_t each, const char **name, const void **value, size_t *length)
{
    const struct record *record = headers;
    if (each >= record->headers) return -156;
    *name = record->names[each].at;
    *value = record->values[each].at;
    *length = record->values[each].length;
    return 0;
}

static int64_t timestamp_of(const struct message *message, int32_t *kind)
{
    *kind = 1;
    return ((struct record *)message->private_data)->timestamp;
}

static void stop(void *client)
{
    require(client == &stops);
    stops++;
}

static struct text text(struct input *input)
{
    size_t length = next(input);
    if (length == NULL_BYTES) return (struct text){0};
    if (length < FIRST_LARGE) return (struct text){.at = copy(input, &length), .length = length};
    length = large[length - FIRST_LARGE];
    return (struct text){.at = calloc(length, 1), .length = length};
}

static struct text name(struct input *input)
{
    size_t length = next(input) % 8;
    char *bytes = copy(input, &length), *named = calloc(length + 1, 1);
    memcpy(named, bytes, length);
    free(bytes);
    return (struct text){.at = named, .length = strlen(named)};
}

static void forget(struct record *record)
{
    if (record->is_copy) return;
    free(record->message.key);
    free(record->message.payload);
    for (size_t each = 0; each < record->headers; each++) {
        free(record->names[each].at);
        free(record->values[each].at);
    }
}

static struct record new_record(struct input *input)
{
    struct text key = text(input), value = text(input);
    struct record record = {.timestamp = (int8_t)next(input), .headers = next(input) % (MOST_HEADERS + 1)};
    record.message = (struct message){.payload = value.at, .length = value.length, .key = key.at,
                                      .key_length = key.length};
    for (size_t each = 0; each < record.headers; each++) {
        record.names[each] = name(input);
        record.values[each] = text(input);
    }
    return record;
}

static int64_t size_of(const struct record *record, int has_headers)
{
    size_t size = record->message.key_length + record->message.length;
    for (size_t each = 0; has_headers && each < record->headers; each++)
        size += record->names[each].length + record->values[each].length;
    return (int64_t)size;
}

/* Whether the columns have the record then: they do unless it is older than what they begin at, or memory runs out. */
static int take(struct columns *columns, struct record *record, int64_t offset)
{
    int is_older = offset < columns->next_offset;
    record->message.offset = offset;
    record->message.private_data = record;
    columns_take(&record->message, columns);
    require(stops == (columns->is_complete || columns->is_out_of_memory));
    if (is_older || columns->is_out_of_memory) return 0;
    require(columns->next_offset == offset + 1);
    return 1;
}

static int is_valid(const struct ArrowArray *array, int64_t row)
{
    return ((const uint8_t *)array->buffers[0])[row / 8] >> row % 8 & 1;
}

/* That row of a column of bytes is this text; what is left of the nulls is counted down. */
static void require_text(struct ArrowArray *array, int64_t row, const void *at, size_t length)
{
    const int64_t *ends = array->buffers[1];
    if (at == NULL) array->null_count--;
    require(is_valid(array, row) == (at != NULL));
    require(ends[row + 1] - ends[row] == (at == NULL ? 0 : (int64_t)length));
    if (at != NULL) require(memcmp((const char *)array->buffers[2] + ends[row], at, length) == 0);
}

static int export(struct columns *columns, int32_t which, struct ArrowArray *array)
{
    struct ArrowSchema schema;
    if (!columns_export(columns, which, &schema, array)) return 0;
    require(strcmp(schema.format, which < NUMBERS ? "Z" : "l") == 0);
    schema.release(&schema);
    require(schema.release == NULL);
    return 1;
}

/* The columns are the records; then none are left. */
static void export_all(struct columns *columns, const struct record *taken, int64_t rows, int has_headers)
{
    struct ArrowArray arrays[7] = {0};
    int64_t next_offset = columns->next_offset, header = 0;
    require(columns->rows == rows);
    int exported = rows > 0;
    for (int32_t which = 0; which < 7 && exported; which++) {
        if (which == 6 && !has_headers) continue;
        if ((which == 2 || which == 3) && !columns->headers) continue;
        exported = export(columns, which, &arrays[which]);
    }
    for (int64_t row = 0; row < rows && exported; row++) {
        const struct record *record = &taken[row];
        require(arrays[0].length == rows && arrays[1].length == rows && arrays[4].length == rows);
        require_text(&arrays[0], row, record->message.key, record->message.key_length);
        require_text(&arrays[1], row, record->message.payload, record->message.length);
        require(((const int64_t *)arrays[4].buffers[1])[row] == record->timestamp);
        require(((const int64_t *)arrays[5].buffers[1])[row] == record->message.offset);
        for (size_t each = 0; has_headers && each < record->headers; each++, header++) {
            require_text(&arrays[2], header, record->names[each].at, record->names[each].length);
            require_text(&arrays[3], header, record->values[each].at, record->values[each].length);
        }
        if (has_headers) require(((const int64_t *)arrays[6].buffers[1])[row + 1] == header);
    }
    require(!exported || columns->headers == header);
    for (int32_t which = 0; which < 7; which++) require(!exported || arrays[which].null_count == 0);
    for (int32_t which = 0; which < 7; which++)
        if (arrays[which].release != NULL) arrays[which].release(&arrays[which]);
    columns_clear(columns, next_offset);
}

int try_input(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, bytes + length};
    int has_headers = next(&input) & 1, count = 0;
    allocations_left = next(&input) - 1;
    int64_t offset = 0, end = next(&input), until_ms = next(&input), max_bytes = next(&input), size = 0;
    struct columns *columns =
        columns_new(timestamp_of, stop, &stops, has_headers ? headers_of : NULL, has_headers ? header_at : NULL);
    if (columns == NULL) return 0;
    columns_clear(columns, 0);
    columns->end = end ? end : INT64_MAX;
    columns->until_ms = until_ms ? until_ms : INT64_MAX;
    columns->max_bytes = max_bytes ? max_bytes * 10 : INT64_MAX;
    stops = 0;
    while (input.at < input.end) {
        uint8_t what = next(&input);
        if (what % 4 == 0) { /* an error, or the partition's end */
            struct text told = text(&input);
            int32_t error = what == 0 ? PARTITION_EOF : what;
            columns_take(&(struct message){.error = error, .payload = told.at, .length = told.length, .offset = offset},
                         columns);
            require(columns->error == error && columns->error_offset == offset);
            require(strlen(columns->error_text) < ERROR_TEXT && stops == (error != PARTITION_EOF));
            free(told.at);
        } else if (what % 4 == 1) { /* a seek */
            columns_clear(columns, next(&input));
            offset = next(&input); /* records that were fetched before it may still come */
            while (count) forget(&records[--count]);
            size = 0;
        } else {
            struct record record = new_record(&input);
            offset += next(&input) % 4;
            int copies = what < 128 || size_of(&record, 1) > MOST_COPIED ? 1 : 8 * (what - 127), taken = 0;
            for (; taken < copies && !stops && count < MOST_RECORDS; offset++) {
                records[count] = record;
                records[count].is_copy = taken > 0;
                if (!take(columns, &records[count], offset)) break;
                count++;
                taken++;
                size += size_of(&record, has_headers);
                require(columns->rows == count && columns->bytes == size);
                require(stops == (offset + 1 >= columns->end || record.timestamp > columns->until_ms
                                  || size >= columns->max_bytes));
            }
            if (!taken) forget(&record);
        }
        if (columns->is_out_of_memory) {
            columns_clear(columns, offset);
        } else if (stops || count == MOST_RECORDS || what % 4 == 3) {
            export_all(columns, records, count, has_headers);
        } else {
            continue;
        }
        while (count) forget(&records[--count]);
        stops = 0;
        size = 0;
    }
    columns_free(columns);
    while (count) forget(&records[--count]);
    return 0;
}
