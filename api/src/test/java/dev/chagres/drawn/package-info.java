/** Layers drawn at random, with all their options, against double precision. */
@org.jspecify.annotations.NullMarked
package dev.chagres.drawn;
