package dev.chagres.te;

/**
 * What the checks of an activation's arguments ask: its name, its formula, and whether it halves the columns.
 *
 * <p>Threading: immutable.
 */
interface ActivationForm {
    /** Returns the name that errors call it by. */
    String name();

    /** Returns y by its elements. */
    String formula();

    /** Returns whether y has half of the columns of x. */
    boolean isGated();
}
