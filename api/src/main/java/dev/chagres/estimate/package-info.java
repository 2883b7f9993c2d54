/** What a program will take, before it runs: operations by layer, and memory. */
@NullMarked
package dev.chagres.estimate;

import org.jspecify.annotations.NullMarked;
