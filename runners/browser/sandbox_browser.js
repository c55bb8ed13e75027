// Reads a page for a model: its text, links, controls, and where they are. Runs in a world of its own, so the page's
// scripts cannot replace what it calls. Every list and text has a bound, and so has the time: a page may be of any
// size.
(() => {
  const WITHOUT_TEXT = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "IFRAME", "OBJECT", "SELECT", "SVG",
    "TEXTAREA", "CANVAS", "AUDIO", "VIDEO"])
  const ROLES = {A: "link", BUTTON: "button", SELECT: "combobox", TEXTAREA: "textbox", SUMMARY: "button"}
  const INPUT_ROLES = {button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox",
    radio: "radio", range: "slider", number: "spinbutton", search: "searchbox", file: "file"}
  const INTERACTIVE = new Set(["button", "link", "checkbox", "radio", "textbox", "combobox", "searchbox", "slider",
    "switch", "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "option", "spinbutton", "treeitem"])
  const STABLE = ["data-testid", "name", "aria-label", "title", "placeholder"]
  const ANCHORS = new Set(["H1", "H2", "H3", "H4", "H5", "H6", "P", "LI", "A", "BUTTON", "LABEL", "TD", "TH"])
  const NAME_CHARS_MAX = 100, URL_CHARS_MAX = 1000, ATTRIBUTE_CHARS_MAX = 80, DEPTH_MAX = 400, CLOCK_STEP = 64

  const short = (text, max = NAME_CHARS_MAX) => {
    const clean = (text || "").slice(0, max * 4).replace(/\s+/g, " ").trim()
    return clean.length > max ? clean.slice(0, max - 1) + "…" : clean
  }
  // A form has its fields, and a document its forms and pictures, as properties of their names, before its own.
  const prototypes = {get: (target, key) => {
    const value = Reflect.get(Object.getPrototypeOf(target), key, target)
    return typeof value === "function" ? value.bind(target) : value
  }}
  const of = node => node instanceof HTMLFormElement || node instanceof Document ? new Proxy(node, prototypes) : node
  const isShown = (element, display) =>
    display === "contents" || of(element).checkVisibility({visibilityProperty: true})

  // The only match in its root, or nothing.
  const only = (root, selector, element) => {
    const found = of(root).querySelectorAll(selector)
    return found.length === 1 && found[0] === element ? selector : null
  }

  const withinRoot = (element, root) => {
    const {localName, id, parentElement: parent, previousElementSibling} = of(element)
    const tag = CSS.escape(localName)
    if (id && id.length <= ATTRIBUTE_CHARS_MAX) {
      const own = only(root, "#" + CSS.escape(id), element)
      if (own) return own
    }
    for (const name of STABLE) {
      const value = of(element).getAttribute(name)
      if (!value || value.length > ATTRIBUTE_CHARS_MAX) continue
      const own = only(root, `${tag}[${name}=${JSON.stringify(value)}]`, element)
      if (own) return own
    }
    if (element === of(document).body || element === of(document).documentElement) return tag
    // Only what is before it is counted: an element may have a hundred thousand siblings.
    let place = 1
    for (let other = previousElementSibling; other; other = of(other).previousElementSibling) {
      if (of(other).localName === localName) place += 1
    }
    const step = `${tag}:nth-of-type(${place})`
    return parent && parent !== root ? `${withinRoot(parent, root)} > ${step}` : step
  }

  // A selector for Playwright; parts in shadow trees follow their host after " >> ".
  const selector = element => {
    const root = of(element).getRootNode()
    const own = withinRoot(element, root)
    return root instanceof ShadowRoot ? `${selector(root.host)} >> ${own}` : own
  }

  const role = node => {
    const element = of(node)
    const given = element.getAttribute("role")
    if (given) return INTERACTIVE.has(given) ? given : null
    if (element.tagName === "INPUT") return element.type === "hidden" ? null : INPUT_ROLES[element.type] || "textbox"
    if (element.tagName === "A") return element.hasAttribute("href") ? "link" : null
    if (ROLES[element.tagName]) return ROLES[element.tagName]
    if (element.isContentEditable && !of(element.parentElement)?.isContentEditable) return "textbox"
    return element.hasAttribute("onclick") ? "button" : null
  }

  const name = node => {
    const element = of(node)
    const by = (element.getAttribute("aria-labelledby") || "").split(/\s+/).filter(Boolean).slice(0, 4)
    const labelled = by.map(id => of(element.getRootNode()).getElementById?.(id)?.textContent).join(" ")
    const label = element.labels?.[0]?.textContent
    const isButton = element.tagName === "INPUT" && ["submit", "reset", "button"].includes(element.type)
    const held = element.matches("input, select, textarea") ? "" : element.textContent
    const candidates = [element.getAttribute("aria-label"), labelled, label, isButton ? element.value : "", held,
      element.getAttribute("alt"), element.querySelector("img[alt]")?.alt, element.getAttribute("title"),
      element.getAttribute("placeholder"), element.getAttribute("name")]
    return candidates.map(text => short(text)).find(Boolean) || ""
  }

  const control = (node, role) => {
    const element = of(node)
    const made = {role, name: name(node), selector: selector(node)}
    if (element.disabled) made.disabled = true
    if (role === "checkbox" || role === "radio") made.value = element.checked ? "checked" : "not checked"
    else if (element.tagName === "SELECT") {
      const texts = [...element.options].slice(0, 20).map(option => short(option.text, 40))
      made.value = short(element.selectedOptions[0]?.text)
      made.options = texts
    } else if (element.matches("input, textarea") && element.type !== "password" && role !== "button") {
      made.value = short(element.value)
    }
    return made
  }

  // Walks what is shown, in the order of reading.
  const read = ({textMax, linksMax, controlsMax, anchorsMax, timeMs}) => {
    const began = performance.now()
    const out = {text: "", isCut: false, links: [], controls: [], anchors: [], linksMore: 0, controlsMore: 0}
    let pieces = [], length = 0, pending = "", steps = 0, isFull = false, isLate = false
    const isOver = () => {
      if (!isLate && ++steps % CLOCK_STEP === 0 && performance.now() - began > timeMs) out.isCut = isLate = true
      return isLate
    }
    const add = text => {
      const lead = length ? pending : ""
      pending = ""
      const room = textMax - length
      const piece = (lead + text).slice(0, room)
      pieces.push(piece)
      length += piece.length
      isFull = lead.length + text.length > room
      out.isCut ||= isFull
    }
    const gap = text => { if (pending.length < text.length || !pending.includes("\n")) pending = text }
    const leaf = (node, isPre) => {
      if (isFull) return // links and controls that follow are listed and counted
      // A text node may be as long as the page: no more of it is looked at than there is room for.
      const text = node.data.length > textMax ? node.substringData(0, textMax * 2) : node.data
      if (isPre) return text && add(text)
      const clean = text.replace(/[ \t\n\r\f]+/g, " ")
      if (clean === " " || clean === "") { if (clean && !pending) pending = " "; return }
      if (clean.startsWith(" ") && !pending) pending = " "
      add(clean.trim())
      if (clean.endsWith(" ")) pending = " "
    }
    const note = node => {
      const element = of(node)
      const kind = role(node)
      if (kind === "link" && element.href && element.tagName === "A") {
        const url = String(element.href).slice(0, URL_CHARS_MAX)
        if (out.links.length < linksMax) out.links.push({text: name(node), url})
        else out.linksMore += 1
      }
      if (kind) {
        if (out.controls.length < controlsMax) out.controls.push(control(node, kind))
        else out.controlsMore += 1
      }
      if (ANCHORS.has(element.tagName) && out.anchors.length < anchorsMax) {
        const text = short(element.textContent)
        if (text) out.anchors.push({text, selector: selector(node)})
      }
    }
    const walk = (node, isPre, depth) => {
      if (isOver()) return
      if (depth > DEPTH_MAX) { out.isCut = true; return }
      const {nodeType, tagName, shadowRoot, childNodes} = of(node)
      if (nodeType === Node.TEXT_NODE) return leaf(node, isPre)
      if (nodeType === Node.ELEMENT_NODE) {
        const style = getComputedStyle(node)
        if (!isShown(node, style.display)) return
        note(node)
        if (tagName === "BR") return gap("\n")
        if (WITHOUT_TEXT.has(tagName.toUpperCase())) return
        const inline = style.display.startsWith("inline") || style.display === "contents"
        const isBlock = /^(P|H\d|PRE|UL|OL|TABLE|BLOCKQUOTE)$/.test(tagName)
        const edge = inline ? "" : style.display === "table-cell" ? "\t" : isBlock ? "\n\n" : "\n"
        if (edge) gap(edge)
        const inside = isPre || style.whiteSpaceCollapse === "preserve"
        let children = childNodes
        if (shadowRoot) children = shadowRoot.childNodes
        else if (tagName === "SLOT" && node.assignedNodes().length) children = node.assignedNodes({flatten: true})
        for (const child of children) { if (isLate) break; walk(child, inside, depth + 1) }
        if (edge) gap(edge)
      }
    }
    if (of(document).body) walk(of(document).body, false, 0)
    out.text = pieces.join("").toWellFormed()
    return out
  }

  const title = () => of(document).title.slice(0, 500)

  // The page's width and height in pixels, and whether who asks the document for its body and root gets these.
  const size = () => {
    const {body, documentElement: root} = of(document)
    const {scrollWidth = 0, scrollHeight = 0} = of(root) || {}
    return [scrollWidth, scrollHeight, body !== null && document.body === body && document.documentElement === root]
  }

  // Resolves when the page has not changed for a moment.
  const settled = (quietMs, maxMs) => new Promise(resolve => {
    const began = performance.now()
    let last = began
    const watch = new MutationObserver(() => { last = performance.now() })
    watch.observe(document, {subtree: true, childList: true, characterData: true})
    const timer = setInterval(() => {
      const now = performance.now()
      if (now - last >= quietMs || now - began >= maxMs) { clearInterval(timer); watch.disconnect(); resolve(true) }
    }, 25)
  })

  const extract = (query, attributes, max) => {
    const found = of(document).querySelectorAll(query)
    const one = node => {
      const element = of(node)
      const text = short(element.textContent, 500)
      const made = {tag: element.localName, text, selector: selector(node), attributes: {}}
      const names = attributes || ["id", "class", "href", "src", "name", "type", "value", "alt", "title"]
      for (const name of names.slice(0, 20)) {
        const value = element.getAttribute(name)
        if (value !== null) made.attributes[name] = value.slice(0, URL_CHARS_MAX)
      }
      return made
    }
    return {elements: [...found].slice(0, max).map(one), more: Math.max(0, found.length - max)}
  }
  return {read, settled, extract, selector, title, size}
})()
