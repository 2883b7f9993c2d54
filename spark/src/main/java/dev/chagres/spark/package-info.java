/** Training as a barrier stage of Spark: each task is a rank, and its partition is the rank's data. */
@NullMarked
package dev.chagres.spark;

import org.jspecify.annotations.NullMarked;
