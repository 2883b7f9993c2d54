/**
 * What a model's plan and its layers know of other ranks: those that split layers, those that split tokens, the part of a parameter that
 * a rank keeps, and norms over ranks.
 */
@NullMarked
package dev.chagres.parallel;

import org.jspecify.annotations.NullMarked;
