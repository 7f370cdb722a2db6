/* What the targets in C share: an input is read as small numbers and bytes, and a broken promise ends the process. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define require(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

struct input {
    const uint8_t *at, *end;
};

/* Each target's, for one input. */
int try_input(const uint8_t *bytes, size_t length);

/* The next byte, 0 after the last. */
static inline uint8_t next(struct input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

/* A copy of `length` bytes, or as many as there are, in memory of exactly that size. */
static inline char *copy(struct input *input, size_t *length)
{
    size_t left = (size_t)(input->end - input->at);
    if (*length > left) *length = left;
    char *copied = malloc(*length + !*length);
    memcpy(copied, input->at, *length);
    input->at += *length;
    return copied;
}
