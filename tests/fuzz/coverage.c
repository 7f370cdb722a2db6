/* Coverage by GCC for libFuzzer, which knows only Clang's: a counter for each place that -fsanitize-coverage=trace-pc
 * reports. Compile this file without that option.
 */
#include <stdint.h>

enum { PLACES = 1 << 14 };

static uint8_t counters[PLACES];
static struct {
    uintptr_t at, flags;
} places[PLACES];

void __sanitizer_cov_8bit_counters_init(uint8_t *, uint8_t *);
void __sanitizer_cov_pcs_init(const uintptr_t *, const uintptr_t *);

void __sanitizer_cov_trace_pc(void)
{
    uintptr_t at = (uintptr_t)__builtin_return_address(0);
    unsigned place = (at ^ at >> 14) % PLACES;
    counters[place]++;
    places[place].at = at;
}

__attribute__((constructor)) static void begin(void)
{
    __sanitizer_cov_8bit_counters_init(counters, counters + PLACES);
    __sanitizer_cov_pcs_init((const uintptr_t *)places, (const uintptr_t *)(places + PLACES));
}
