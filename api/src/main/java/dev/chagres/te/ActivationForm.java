package dev.chagres.te;

/**
 * What checks of arguments need to know of an activation: its name, its formula, and whether it halves the columns.
 *
 * <p>Threading: immutable.
 */
interface ActivationForm {
    /** Returns the name that error texts use. */
    String name();

    /** Returns the formula of an element of y. */
    String formula();

    /** Returns whether y has half of the columns of x. */
    boolean isGated();
}
