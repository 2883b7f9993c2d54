/** Benchmarks: one question each, the answer checked before it is timed. */
@NullMarked
package dev.chagres.jmh;

import org.jspecify.annotations.NullMarked;
