// What several parts need. Each part that is loaded later imports it, so that the bundler puts all of this into one
// file and not into one for each group of parts that share something.
import "./code-view.js";
import "./files.js";
import "./languages.js";
