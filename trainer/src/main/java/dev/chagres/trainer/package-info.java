/** The training command: its options, its loop, and what it shows and writes. */
@NullMarked
package dev.chagres.trainer;

import org.jspecify.annotations.NullMarked;
