/** Short programs, one concept each, to be read in their order; each checks its own result. */
@NullMarked
package dev.chagres.samples.tour;

import org.jspecify.annotations.NullMarked;
