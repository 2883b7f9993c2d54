/* operator new of this program, and of the libraries it links to: it can be made to fail. */
#ifndef CHAGRES_TESTS_EXTREMES_STARVE_H
#define CHAGRES_TESTS_EXTREMES_STARVE_H

namespace extremes {

/* From the `number`-th request on (0: the next) every request for memory fails, on every thread. */
void begin_starving(int number);

/* Ends that; whether a request failed. */
bool end_starving();

}  // namespace extremes

#endif /* CHAGRES_TESTS_EXTREMES_STARVE_H */
