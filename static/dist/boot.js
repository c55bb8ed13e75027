(()=>{try{let t=localStorage.getItem("sandbox.theme");(t==="light"||t==="dark")&&(document.documentElement.dataset.theme=t)}catch{}})();
