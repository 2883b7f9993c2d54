/** States, device times and a profiler for JMH benchmarks of programs that use Chagres. */
@NullMarked
package dev.chagres.jmh.states;

import org.jspecify.annotations.NullMarked;
