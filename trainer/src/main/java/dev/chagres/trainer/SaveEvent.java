package dev.chagres.trainer;

import java.util.function.Supplier;
import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/**
 * An event of JDK Flight Recorder: the state of a run was saved, on the rank whose thread it is of. It lasts as long as training waits.
 *
 * <p>Threading: one thread at a time.
 */
@Name("dev.chagres.Save")
@Label("Save")
@Description("The state of a run was saved")
@Category("Chagres")
@StackTrace(false)
final class SaveEvent extends Event {
    @Label("Target")
    String target = "";

    /** Returns the result of {@code save}, which writes to {@code target} or begins to. */
    static <T> T during(Object target, Supplier<T> save) {
        var event = new SaveEvent();
        event.begin();
        T result = save.get();
        if (event.shouldCommit()) {
            event.target = target.toString();
            event.commit();
        }
        return result;
    }
}
