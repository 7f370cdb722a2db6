/* infra/kafka/_outgoing.c against a producer that compares each row with those that were given to it, and whose queue
 * is full now and then. */
#include <stdarg.h>

#include "input.h"

#include "../../infra/kafka/_outgoing.c"

enum { MOST_ROWS = 32, MOST_HEADERS = 4, NULL_BYTES = 255, QUEUE_FULL = -184 };

struct column { /* values one after another */
    char *data;
    size_t used;
    int64_t count, lengths[MOST_ROWS * MOST_HEADERS];
};

struct row {
    int32_t topic, partition;
    int64_t time_ms, key, value, first_header, headers; /* the last four are places in the columns */
};

struct headers {
    int64_t first, count;
};

static struct column keys, values, header_names, header_values;
static struct row rows[MOST_ROWS];
static const char *const topics[] = {"orders", "", "a topic"};
static int64_t produced, open_headers, added_headers;
static struct input trouble;

static void append(struct column *column, struct input *input, int may_be_null)
{
    size_t length = next(input);
    if (may_be_null && length == NULL_BYTES) {
        column->lengths[column->count++] = -1;
        return;
    }
    char *bytes = copy(input, &length);
    column->data = realloc(column->data, column->used + length + 1);
    memcpy(column->data + column->used, bytes, length);
    free(bytes);
    column->used += length;
    column->lengths[column->count++] = (int64_t)length;
}

/* That the value at this place of a column is this one. */
static void require_value(const struct column *column, int64_t at, const char *found, size_t length)
{
    size_t begin = 0;
    for (int64_t each = 0; each < at; each++)
        if (column->lengths[each] > 0) begin += (size_t)column->lengths[each];
    int64_t wanted = column->lengths[at];
    require((found == NULL) == (wanted < 0));
    require(length == (wanted < 0 ? 0 : (size_t)wanted));
    if (found != NULL) require(memcmp(found, column->data + begin, length) == 0);
}

static void *headers_new(size_t count)
{
    struct headers *headers = calloc(1, sizeof *headers);
    require((int64_t)count == rows[produced].headers && count > 0);
    headers->first = rows[produced].first_header;
    open_headers++;
    return headers;
}

static int32_t header_add(void *to, const char *name, ptrdiff_t name_length, const void *value, ptrdiff_t length)
{
    struct headers *headers = to;
    int64_t at = headers->first + headers->count++;
    require_value(&header_names, at, name, (size_t)name_length);
    require_value(&header_values, at, value, (size_t)length);
    added_headers++;
    return 0;
}

static void headers_destroy(void *headers)
{
    open_headers--;
    free(headers);
}

static int32_t producev(void *client, ...)
{
    require(client == &trouble);
    const struct row *row = &rows[produced];
    struct headers *headers = NULL;
    int seen = 0, kind;
    va_list given;
    va_start(given, client);
    while ((kind = va_arg(given, int)) != END) {
        const char *bytes;
        size_t length;
        seen |= 1 << kind;
        switch (kind) {
        case TOPIC:
            require(strcmp(va_arg(given, const char *), topics[row->topic]) == 0);
            break;
        case PARTITION:
            require(va_arg(given, int32_t) == row->partition);
            break;
        case MSGFLAGS:
            require(va_arg(given, int) == COPY);
            break;
        case KEY:
        case VALUE:
            bytes = va_arg(given, const char *);
            length = va_arg(given, size_t);
            require_value(kind == KEY ? &keys : &values, produced, bytes, length);
            break;
        case TIMESTAMP:
            require(va_arg(given, int64_t) == row->time_ms);
            break;
        case HEADERS:
            headers = va_arg(given, struct headers *);
            require(headers->count == row->headers);
            break;
        default:
            require(0);
        }
    }
    va_end(given);
    const int always = 1 << TOPIC | 1 << PARTITION | 1 << MSGFLAGS | 1 << KEY | 1 << VALUE | 1 << TIMESTAMP;
    require(seen == (row->headers ? always | 1 << HEADERS : always));
    if (next(&trouble) % 3 == 2) return QUEUE_FULL;
    if (headers != NULL) headers_destroy(headers); /* the producer owns them */
    produced++;
    return 0;
}

static void forget(struct column *column)
{
    free(column->data);
    *column = (struct column){0};
}

/* Errors of deliveries are kept up to a number. */
static void try_failures(struct input input)
{
    struct failures failures = {0};
    int32_t errors = 0;
    while (input.at < input.end) {
        struct message message = {.error = next(&input) % 3};
        outgoing_failed(NULL, &message, &failures);
        errors += message.error && errors < FAILURES;
        require(failures.count == errors && (!message.error || errors == FAILURES || failures.errors[errors - 1]));
    }
}

int try_input(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, bytes + length};
    int32_t row_topics[MOST_ROWS], partitions[MOST_ROWS];
    int64_t times[MOST_ROWS], counts[MOST_ROWS], count = 0, all_headers = 0;
    try_failures(input);
    size_t troubles = next(&input) % 16;
    char *copied = copy(&input, &troubles);
    while (input.at < input.end && count < MOST_ROWS) {
        struct row *row = &rows[count];
        row->topic = row_topics[count] = next(&input) % 3;
        row->partition = partitions[count] = (int8_t)next(&input);
        row->time_ms = times[count] = (int64_t)next(&input) << next(&input) % 48;
        append(&keys, &input, 1);
        append(&values, &input, 1);
        row->first_header = all_headers;
        row->headers = counts[count] = next(&input) % (MOST_HEADERS + 1);
        for (int64_t each = 0; each < row->headers; each++, all_headers++) {
            append(&header_names, &input, 0);
            append(&header_values, &input, 1);
        }
        count++;
    }
    produced = open_headers = added_headers = 0;
    trouble = (struct input){(const uint8_t *)copied, (const uint8_t *)copied + troubles};
    struct outgoing outgoing = {
        .rows = count, .topics = topics, .topic = row_topics, .partition = partitions, .time_ms = times,
        .key = {keys.data ? keys.data : "", keys.lengths}, .value = {values.data ? values.data : "", values.lengths},
        .headers = all_headers ? counts : NULL,
        .header_name = {header_names.data ? header_names.data : "", header_names.lengths},
        .header_value = {header_values.data ? header_values.data : "", header_values.lengths},
        .producev = producev, .headers_new = headers_new, .header_add = header_add, .headers_destroy = headers_destroy,
    };
    int32_t error;
    while ((error = outgoing_produce(&outgoing, &trouble)) != 0) {
        require(error == QUEUE_FULL && outgoing.next_row == produced && open_headers == 0);
    }
    require(produced == count && outgoing.next_header == all_headers && open_headers == 0);
    require(added_headers >= all_headers);
    forget(&keys);
    forget(&values);
    forget(&header_names);
    forget(&header_values);
    free(copied);
    return 0;
}
