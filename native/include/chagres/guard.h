/*
 * The guard round Transformer Engine: what belongs to the library itself. The guarded functions are in te.h.
 */
#ifndef CHAGRES_GUARD_H
#define CHAGRES_GUARD_H

#ifdef __cplusplus
extern "C" {
#endif

/* What every te_ function returns. */
enum TeStatus {
  TE_SUCCESS = 0,
  TE_ERROR = 1,   /* the library threw; te_last_error() has its text */
  TE_REFUSED = 2, /* the guard refused arguments on which the library would crash; the text names the argument */
  TE_MISSING = 3, /* the opened library has no such function; the text names it */
  TE_NOT_OPEN = 4 /* te_open has not succeeded in this process */
};

/* Opens the library that provides the nvte_ functions (Transformer Engine or the reference) by full path with
 * RTLD_LAZY | RTLD_GLOBAL and looks every function up. A second call with the same path does nothing; with another path
 * it is TE_ERROR: a process has one provider. */
int te_open(const char *path);

/* Text of this thread's last failing te_ call, "" when there was none; owned by the thread, valid until its next call. */
const char *te_last_error(void);

/* 1 when the opened library has nvte_`name` (name without prefix, such as "layernorm_fwd"), else 0. */
int te_has(const char *name);

/* setenv(name, value, 1): libraries read environment variables that Java cannot set. Call before te_open. */
int te_set_environment(const char *name, const char *value);

#ifdef __cplusplus
}
#endif

#endif /* CHAGRES_GUARD_H */
